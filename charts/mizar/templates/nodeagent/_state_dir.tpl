{{- /* Fails if an upgrade changes nodeagent.stateDir while pods use devices of Mizar: an agent with another folder
finds neither the limits nor the shim of the containers that run. helm template and tools that use it do not query the
cluster, so this check does not work with them. */ -}}
{{- define "mizar.stateDirStays" -}}
{{- $map := lookup "v1" "ConfigMap" .Release.Namespace (printf "%s-nodeagent" (include "mizar.name" .)) | default dict -}}
{{- $before := (dig "data" "nodeagent.yaml" "" $map | fromYaml).stateDir -}}
{{- $after := .Values.nodeagent.stateDir -}}
{{- $served := .Capabilities.APIVersions.Has "mizar.share/v1alpha1" -}}
{{- if and $before $served (ne (clean $before) (clean $after)) -}}
{{- $users := include "mizar.users" . | fromJsonArray -}}
{{- if $users -}}
{{- $more := gt (len $users) 3 | ternary (printf " and %d more" (sub (len $users) 3)) "" -}}
{{- fail (printf "nodeagent.stateDir cannot be changed from %s to %s while pods share or borrow cards, since their limits would never be updated again: end %s%s first, or leave the value as it is" $before $after (slice $users 0 (min 3 (len $users)) | join ", ") $more) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The pods that share cards, and the pools that lend some, as a JSON list of names. */ -}}
{{- define "mizar.users" -}}
{{- $users := list -}}
{{- range (lookup "mizar.share/v1alpha1" "ShadowPod" "" "").items -}}
{{- range dig "status" "devices" list . -}}
{{- with .holder -}}
{{- $users = append $users (printf "%s/%s" .namespace .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $users = $users | uniq | sortAlpha -}}
{{- range (lookup "mizar.share/v1alpha1" "GPUPool" "" "").items -}}
{{- if dig "status" "cards" "lent" 0 . -}}
{{- $users = append $users (printf "the spot pods on cards of pool %s" .metadata.name) -}}
{{- end -}}
{{- end -}}
{{- $users | toJson -}}
{{- end -}}
