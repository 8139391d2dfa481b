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

{{- /* CEL: whether the container c gets virtual devices or spot cards of Mizar. The webhook translates aliases in pods
       only, so templates still have them. Call with the root. */ -}}
{{- define "mizar.cel.hasDevices" -}}
has(c.resources) && has(c.resources.limits) && c.resources.limits.exists(k, k.matches('/gpu[.][0-9]+$|^mizar[.]spot/gpu$')
{{- with .Values.webhook.resourceNames }} || k in {{ toJson . | replace "\"" "'" }}{{ end }})
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

{{- /* CEL: whether the container c is privileged, or has a capability by which root opens any file of the node, such as
       its own limits file, by a mount that it has. */ -}}
{{- define "mizar.cel.isPrivileged" -}}
has(c.securityContext) && (
(has(c.securityContext.privileged) && c.securityContext.privileged) ||
(has(c.securityContext.capabilities) && has(c.securityContext.capabilities.add) &&
c.securityContext.capabilities.add.exists(a, a.matches('^(?i)(CAP_)?(ALL|SYS_ADMIN|SYS_MODULE|SYS_RAWIO|DAC_READ_SEARCH)$'))))
{{- end -}}

{{- /* JSON: the kinds in which users write templates of pods, each with the part of a policy's name, the path of the
       template and the rules of a policy. ReplicaSets are left out: the warning about their Deployment is enough. The
       Jobs of a CronJob are not, since no rule can tell them from others. */ -}}
{{- define "mizar.templateKinds" -}}
{{- $asked := list "CREATE" "UPDATE" -}}
{{- list
      (dict "part" "templates" "path" "object.spec.template" "rules" (list
        (dict "apiGroups" (list "apps") "apiVersions" (list "v1") "resources" (list "deployments" "statefulsets" "daemonsets") "operations" $asked)
        (dict "apiGroups" (list "batch") "apiVersions" (list "v1") "resources" (list "jobs") "operations" $asked)))
      (dict "part" "cronjobs" "path" "object.spec.jobTemplate.spec.template" "rules" (list
        (dict "apiGroups" (list "batch") "apiVersions" (list "v1") "resources" (list "cronjobs") "operations" $asked)))
      | toJson -}}
{{- end -}}

{{- /* CEL: whether a template is new or was changed: an existing Deployment can still be scaled and labelled, whatever
       its template says. Call with the template's path. */ -}}
{{- define "mizar.cel.templateIsNew" -}}
request.operation == 'CREATE' || {{ . }} != {{ . | replace "object" "oldObject" }}
{{- end -}}
