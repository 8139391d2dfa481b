{{- /* Fails if the cluster has another release of this chart: the policies of each release would refuse what the
operator of the other does, so that no pod would get a share any more. Fails for the same reason if an upgrade gives the
objects of this release other names: if it stopped half-way, those of both names would be left. helm template and tools
that use it, such as Argo CD, do not query the cluster, so this check does not work with them. */ -}}
{{- define "mizar.onlyOne" -}}
{{- $root := . -}}
{{- range (lookup "admissionregistration.k8s.io/v1" "MutatingWebhookConfiguration" "" "").items -}}
{{- $labels := .metadata.labels | default dict -}}
{{- if eq (get $labels "app.kubernetes.io/name") "mizar" -}}
{{- $release := get $labels "app.kubernetes.io/instance" -}}
{{- $namespace := (first .webhooks).clientConfig.service.namespace -}}
{{- if or (ne $release $root.Release.Name) (ne $namespace $root.Release.Namespace) -}}
{{- fail (printf "Mizar is in this cluster already, as release %s of namespace %s, and can be there once: upgrade that one, or uninstall it first; if helm list --all --all-namespaces does not show it, docs/runbooks/change-values.md says how to remove what it left" $release $namespace) -}}
{{- end -}}
{{- $name := trimSuffix "-webhook" .metadata.name -}}
{{- if ne $name (include "mizar.name" $root) -}}
{{- fail (printf "nameOverride cannot be changed while Mizar is installed: its objects are named %s-... Leave it as it is, or run helm uninstall %s --namespace %s --no-hooks, which leaves pods and their cards as they are, and install Mizar again; docs/runbooks/change-values.md says how to remove what an earlier release or upgrade left" $name $release $namespace) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
