{{- /* CEL: whether the name k of a resource means a share or a spot card, in either spelling, misspelt
       too. Without a slash Kubernetes itself knows no name that ends so. */ -}}
{{- define "mizar.cel.meansShare" -}}
k.matches('[./]gpu[.][0-9]+$') || k.matches('(^|[.])mizar[.](share|spot)[./]') || k.matches('^[^/]+[.]gpu[^/]*$')
{{- end -}}

{{- /* CEL: whether any container of a pod spec asks for what means a share.
       Call with the path of the spec, such as "object.spec". */ -}}
{{- define "mizar.cel.asks" -}}
({{ . }}.containers + (has({{ . }}.initContainers) ? {{ . }}.initContainers : [])).exists(c,
  has(c.resources) && (
    (has(c.resources.limits) && c.resources.limits.exists(k, {{ include "mizar.cel.meansShare" . }})) ||
    (has(c.resources.requests) && c.resources.requests.exists(k, {{ include "mizar.cel.meansShare" . }}))))
{{- end -}}

{{- /* CEL: the resources of all containers of a pod spec, to compare old and new. */ -}}
{{- define "mizar.cel.resources" -}}
({{ . }}.containers + (has({{ . }}.initContainers) ? {{ . }}.initContainers : [])).map(c,
  has(c.resources) ? [c.resources] : [])
{{- end -}}
