{{- /* CEL: whether a pod has the label of share pods. Call with the pod, such as "object". */ -}}
{{- define "mizar.cel.isSharePod" -}}
has({{ . }}.metadata.labels) && 'mizar.share/share-pod' in {{ . }}.metadata.labels &&
{{ . }}.metadata.labels['mizar.share/share-pod'] == 'true'
{{- end -}}

{{- /* CEL: whether a pod has the label of spot pods. Call with the pod. */ -}}
{{- define "mizar.cel.isSpotPod" -}}
has({{ . }}.metadata.labels) && 'mizar.share/spot-pod' in {{ . }}.metadata.labels &&
{{ . }}.metadata.labels['mizar.share/spot-pod'] == 'true'
{{- end -}}

{{- /* CEL: whether the container c gets virtual devices or spot cards of Mizar. */ -}}
{{- define "mizar.cel.hasDevices" -}}
has(c.resources) && has(c.resources.limits) && c.resources.limits.exists(k, k.matches('/gpu[.][0-9]+$|^mizar[.]spot/gpu$'))
{{- end -}}

{{- /* CEL: whether the container c sets a variable, as far as its spec shows: of envFrom, it shows only the prefix,
       not the keys of the ConfigMap or Secret. Call with (dict "names" PATTERN "except" CONDITION), the second of a
       variable e, which may be left out. */ -}}
{{- define "mizar.cel.setsVariable" -}}
(has(c.env) && c.env.exists(e, e.name.matches('^{{ .names }}$')
{{- with .except }} && !({{ . }}){{ end }})) ||
(has(c.envFrom) && c.envFrom.exists(e, has(e.prefix) && e.prefix != '' &&
(e.prefix.startsWith('NVIDIA_') || 'NVIDIA_'.startsWith(e.prefix))))
{{- end -}}

{{- /* CEL: a path in normal form: a slash after each part, no empty parts, no dots, and /run for /var/run. */ -}}
{{- define "mizar.cel.cleanPath" -}}
({{ . }}.split('/').filter(s, s != '' && s != '.').map(s, '/' + s).join('') + '/').replace('/var/run/', '/run/')
{{- end -}}

{{- /* CEL: whether the path p in normal form is the file or folder f, is inside it, or contains it. */ -}}
{{- define "mizar.cel.touches" -}}
p.startsWith(f + '/') || (f + '/').startsWith(p)
{{- end -}}

{{- /* The end of a refusal's message. Call with the name that policies.sharePodsMay has for what is refused. */ -}}
{{- define "mizar.mayAllow" -}}
; policies.sharePodsMay of Mizar can allow {{ . }}
{{- end -}}

{{- /* CEL: whether the container c is privileged or has SYS_ADMIN. */ -}}
{{- define "mizar.cel.isPrivileged" -}}
has(c.securityContext) && (
(has(c.securityContext.privileged) && c.securityContext.privileged) ||
(has(c.securityContext.capabilities) && has(c.securityContext.capabilities.add) &&
c.securityContext.capabilities.add.exists(a, a.matches('^(?i)(CAP_)?(ALL|SYS_ADMIN)$'))))
{{- end -}}
