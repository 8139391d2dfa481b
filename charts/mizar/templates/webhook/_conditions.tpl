{{- /* CEL: whether any container of a pod spec asks for a share, in either spelling.
       Call with the path of the spec, such as "object.spec". */ -}}
{{- define "mizar.cel.asks" -}}
({{ . }}.containers + (has({{ . }}.initContainers) ? {{ . }}.initContainers : [])).exists(c,
  has(c.resources) && (
    (has(c.resources.limits) && c.resources.limits.exists(k, k.matches('[./]gpu[.][0-9]+$'))) ||
    (has(c.resources.requests) && c.resources.requests.exists(k, k.matches('[./]gpu[.][0-9]+$')))))
{{- end -}}

{{- /* CEL: the resources of all containers of a pod spec, to compare old and new. */ -}}
{{- define "mizar.cel.resources" -}}
({{ . }}.containers + (has({{ . }}.initContainers) ? {{ . }}.initContainers : [])).map(c,
  has(c.resources) ? [c.resources] : [])
{{- end -}}
