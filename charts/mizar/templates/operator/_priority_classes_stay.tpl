{{- /* Fails if an upgrade would delete a PriorityClass that the values still name, since it is not the chart's any more,
or would change its value, which Kubernetes refuses. helm template and tools that use it do not query the cluster, so
this check does not work with them. */ -}}
{{- define "mizar.priorityClassesStay" -}}
{{- $root := . -}}
{{- range $section, $name := dict "shadowPods" (include "mizar.shadowPriorityClass" .) "spot" (include "mizar.spotPriorityClass" .) -}}
{{- $class := (get $root.Values $section).priorityClass -}}
{{- $found := ternary (lookup "scheduling.k8s.io/v1" "PriorityClass" "" $name) dict (ne $name "") -}}
{{- $notes := dig "metadata" "annotations" dict $found -}}
{{- $ours := eq (get $notes "meta.helm.sh/release-name") $root.Release.Name -}}
{{- if and $ours (not $class.create) (ne (get $notes "helm.sh/resource-policy") "keep") -}}
{{- fail (printf "this upgrade would delete PriorityClass %s, which %s.priorityClass.name still names: run kubectl annotate priorityclass %s helm.sh/resource-policy=keep first, or name another class" $name $section $name) -}}
{{- end -}}
{{- if and $ours $class.create (ne (int64 $found.value) (int64 $class.value)) -}}
{{- fail (printf "Kubernetes does not allow changing the value of PriorityClass %s from %d to %d: change %s.priorityClass.name as well" $name (int64 $found.value) (int64 $class.value) $section) -}}
{{- end -}}
{{- end -}}
{{- end -}}
