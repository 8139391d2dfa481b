{{- /* Fails if an upgrade would delete a PriorityClass that the values still name, since it is not the chart's any more,
or would change its value, which Kubernetes refuses. helm template and tools that use it do not query the cluster, so
this check does not work with them. */ -}}
{{- define "mizar.priorityClassesStay" -}}
{{- include "mizar.priorityClassStays" (dict "root" . "section" "shadowPods" "name" (include "mizar.shadowPriorityClass" .)) -}}
{{- if .Values.spot.enabled -}}
{{- include "mizar.priorityClassStays" (dict "root" . "section" "spot" "name" (include "mizar.spotPriorityClass" .)) -}}
{{- end -}}
{{- end -}}

{{- /* Call with (dict "root" $ "section" "spot" "name" $class). An empty name, for which lookup would list all classes,
is not looked up. A release of the same name in another namespace is not this one. */ -}}
{{- define "mizar.priorityClassStays" -}}
{{- if .name -}}
{{- $class := (get .root.Values .section).priorityClass -}}
{{- $found := lookup "scheduling.k8s.io/v1" "PriorityClass" "" .name -}}
{{- $notes := dig "metadata" "annotations" dict $found -}}
{{- $owner := printf "%v/%v" (get $notes "meta.helm.sh/release-namespace") (get $notes "meta.helm.sh/release-name") -}}
{{- if eq $owner (printf "%s/%s" .root.Release.Namespace .root.Release.Name) -}}
{{- if and (not $class.create) (ne (get $notes "helm.sh/resource-policy") "keep") -}}
{{- fail (printf "this upgrade would delete PriorityClass %s, which %s.priorityClass.name still names: run kubectl annotate priorityclass %s helm.sh/resource-policy=keep first, or name another class" .name .section .name) -}}
{{- end -}}
{{- if and $class.create (ne (int64 $found.value) (int64 $class.value)) -}}
{{- fail (printf "Kubernetes does not allow changing the value of PriorityClass %s from %d to %d: change %s.priorityClass.name as well" .name (int64 $found.value) (int64 $class.value) .section) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
