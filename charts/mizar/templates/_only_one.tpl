{{- /* Fails where the cluster has another release of this chart: its policies would refuse what this one's
operator does, and the other way round, so that nobody got a share any more. helm template and what rests on
it, such as Argo CD, see no cluster. */ -}}
{{- define "mizar.onlyOne" -}}
{{- $root := . -}}
{{- range (lookup "admissionregistration.k8s.io/v1" "MutatingWebhookConfiguration" "" "").items -}}
{{- $labels := .metadata.labels | default dict -}}
{{- $release := get $labels "app.kubernetes.io/instance" -}}
{{- if and (eq (get $labels "app.kubernetes.io/name") "mizar") (ne $release $root.Release.Name) -}}
{{- $namespace := (first .webhooks).clientConfig.service.namespace -}}
{{- fail (printf "Mizar is in this cluster already, as release %s of namespace %s, and can be there once: upgrade that one, or uninstall it first" $release $namespace) -}}
{{- end -}}
{{- end -}}
{{- end -}}
