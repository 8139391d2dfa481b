{{- /* CEL: whether the resource name k means a share or a spot card: with or without the namespace in front,
       misspelt (even without a slash: Kubernetes itself has no such name), or one of webhook.resourceNames.
       Call with the root. */ -}}
{{- define "mizar.cel.meansShare" -}}
k.matches('[./]gpu[.][0-9]+$') || k.matches('(^|[.])mizar[.](share|spot)[./]') || k.matches('^[^/]+[.]gpu[^/]*$')
{{- with .Values.webhook.resourceNames }} || k in {{ toJson . | replace "\"" "'" }}{{ end }}
{{- end -}}

{{- /* CEL: the containers and init containers of a pod spec. Webhooks are called before Kubernetes refuses a spec without
       containers, which is null here. Call with the path of the spec. */ -}}
{{- define "mizar.cel.containers" -}}
((has({{ . }}.containers) && type({{ . }}.containers) == list ? {{ . }}.containers : []) +
(has({{ . }}.initContainers) ? {{ . }}.initContainers : []))
{{- end -}}

{{- /* CEL: whether any container of a pod spec requests a resource that means a share.
       Call with (list $ "object.spec"): the root, and the path of the spec. */ -}}
{{- define "mizar.cel.asks" -}}
{{- $root := first . -}}{{- $spec := last . -}}
{{ include "mizar.cel.containers" $spec }}.exists(c,
  has(c.resources) && (
    (has(c.resources.limits) && c.resources.limits.exists(k, {{ include "mizar.cel.meansShare" $root }})) ||
    (has(c.resources.requests) && c.resources.requests.exists(k, {{ include "mizar.cel.meansShare" $root }}))))
{{- end -}}

{{- /* CEL: the resources of all containers of a pod spec, to compare old and new. */ -}}
{{- define "mizar.cel.resources" -}}
{{ include "mizar.cel.containers" . }}.map(c,
  has(c.resources) ? [c.resources] : [])
{{- end -}}
