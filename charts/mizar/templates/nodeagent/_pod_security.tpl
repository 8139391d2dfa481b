{{- /* Fails if the release's namespace enforces a level of Pod Security that refuses the node agents: helm would wait for
them in vain, or succeed without any. What a cluster enforces in namespaces without a label is in no object that could be
looked up. helm template and tools that use it do not query the cluster, so this check does not work with them. */ -}}
{{- define "mizar.podSecurityAllows" -}}
{{- $namespace := .Release.Namespace -}}
{{- $labels := dig "metadata" "labels" dict (lookup "v1" "Namespace" "" $namespace) -}}
{{- $level := get $labels "pod-security.kubernetes.io/enforce" -}}
{{- if has $level (list "baseline" "restricted") -}}
{{- fail (printf "namespace %s enforces Pod Security %s, which refuses the node agents, since they mount folders of their node: run kubectl label namespace %s pod-security.kubernetes.io/enforce=privileged --overwrite first" $namespace $level $namespace) -}}
{{- end -}}
{{- end -}}
