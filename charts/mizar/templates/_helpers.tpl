{{- /* Names: mizar-operator, mizar-webhook, mizar-nodeagent in a release called mizar. */ -}}
{{- define "mizar.name" -}}
{{- default .Release.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- /* Call these three with (dict "root" $ "part" "operator"). */ -}}
{{- define "mizar.selector" -}}
app.kubernetes.io/name: mizar
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end -}}

{{- /* With "labels" (dict ...), these as well; they win over commonLabels. */ -}}
{{- define "mizar.labels" -}}
{{ include "mizar.selector" . }}
app.kubernetes.io/part-of: mizar
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- /* merge would take an empty label for none. */ -}}
{{- $labels := dict }}
{{- range $given := list .root.Values.commonLabels .labels }}
{{- range $key, $value := $given }}
{{- $_ := set $labels $key $value }}
{{- end }}
{{- end }}
{{- with $labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "mizar.meta" -}}
name: {{ include "mizar.name" .root }}-{{ .part }}
labels:
  {{- include "mizar.labels" . | nindent 2 }}
{{- end -}}

{{- /* metadata of an object in the release's namespace */ -}}
{{- define "mizar.namespacedMeta" -}}
{{ include "mizar.meta" . }}
namespace: {{ .root.Release.Namespace }}
{{- end -}}

{{- /* Call with (dict "root" $ "image" "operator"). */ -}}
{{- define "mizar.image" -}}
{{- $values := .root.Values.image -}}
{{- $named := printf "%s/%s:%s" $values.registry .image ($values.tag | default .root.Chart.AppVersion) -}}
{{- include "mizar.imageFrom" (list .root (index $values .image | default $named)) -}}
{{- end -}}

{{- /* The image of shadow pods. */ -}}
{{- define "mizar.pauseImage" -}}
{{- include "mizar.imageFrom" (list . .Values.pauseImage) -}}
{{- end -}}

{{- /* An image, from global.imageRegistry if there is one. What stands before the first slash is a registry if it has a
dot or a colon in it, or is localhost. Call with (list $ "registry.k8s.io/pause:3.10"). */ -}}
{{- define "mizar.imageFrom" -}}
{{- $registry := ((first .).Values.global | default dict).imageRegistry -}}
{{- $named := last . -}}
{{- if $registry -}}
{{- $before := splitList "/" $named | first -}}
{{- if and (contains "/" $named) (or (regexMatch "[.:]" $before) (eq $before "localhost")) -}}
{{- $named = trimPrefix (printf "%s/" $before) $named -}}
{{- end -}}
{{- $named = printf "%s/%s" (trimSuffix "/" $registry) $named -}}
{{- end -}}
{{- $named -}}
{{- end -}}

{{- /* image.pullSecrets and global.imagePullSecrets, as a JSON list. */ -}}
{{- define "mizar.pullSecrets" -}}
{{- $found := .Values.image.pullSecrets | default list -}}
{{- range (.Values.global | default dict).imagePullSecrets -}}
{{- $found = append $found (ternary (dict "name" .) . (kindIs "string" .)) -}}
{{- end -}}
{{- $found | uniq | toJson -}}
{{- end -}}

{{- /* The fields of a pod spec that every section of the values has. Call with (dict "root" $ "section" ...). */ -}}
{{- define "mizar.podSpec" -}}
automountServiceAccountToken: true
{{- with include "mizar.pullSecrets" .root | fromJsonArray }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .section.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .section.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .section.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .section.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{- define "mizar.podEnv" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: MIZAR_LOG_LEVEL
  value: {{ .Values.logLevel }}
- name: MIZAR_LOG_FORMAT
  value: {{ .Values.logFormat }}
{{- end -}}

{{- define "mizar.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* The PriorityClass of shadow pods; empty for none. */ -}}
{{- define "mizar.shadowPriorityClass" -}}
{{- $class := .Values.shadowPods.priorityClass -}}
{{- if $class.create -}}
{{- $class.name | default (printf "%s-shadow-pods" (include "mizar.name" .)) -}}
{{- else -}}
{{- $class.name -}}
{{- end -}}
{{- end -}}

{{- /* The PriorityClass of spot pods that name none; empty for none. */ -}}
{{- define "mizar.spotPriorityClass" -}}
{{- $class := .Values.spot.priorityClass -}}
{{- if $class.create -}}
{{- $class.name | default (printf "%s-spot-pods" (include "mizar.name" .)) -}}
{{- else -}}
{{- $class.name -}}
{{- end -}}
{{- end -}}

{{- /* How the replicas of a program are spread: as its section says, otherwise over nodes if possible. An entry without
labelSelector is about the program's own pods. */ -}}
{{- define "mizar.spread" -}}
{{- $mine := dict "labelSelector" (dict "matchLabels" (include "mizar.selector" . | fromYaml)) -}}
{{- $nodes := dict "maxSkew" 1 "topologyKey" "kubernetes.io/hostname" "whenUnsatisfiable" "ScheduleAnyway" -}}
topologySpreadConstraints:
{{- range (get .root.Values .part).topologySpreadConstraints | default (list $nodes) }}
  - {{ ternary . (mergeOverwrite (deepCopy $mine) .) (hasKey . "labelSelector") | toYaml | indent 4 | trim }}
{{- end }}
{{- end -}}

{{- /* The budget of a program, if it has more than one replica. */ -}}
{{- define "mizar.budget" -}}
{{- $section := get .root.Values .part -}}
{{- if and $section.podDisruptionBudget.enabled (gt (int $section.replicas) 1) -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "mizar.namespacedMeta" . | nindent 2 }}
spec:
  maxUnavailable: {{ $section.podDisruptionBudget.maxUnavailable | default 1 }}
  # If all are broken, they do not hold up a drain.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "mizar.selector" . | nindent 6 }}
{{- end -}}
{{- end -}}

{{- define "mizar.serviceAccountName" -}}
{{- (get .root.Values .part).serviceAccount.name | default (printf "%s-%s" (include "mizar.name" .root) .part) -}}
{{- end -}}

{{- /* The service account of a part, unless it is there already. With "annotations" (dict ...), these as well. */ -}}
{{- define "mizar.serviceAccount" -}}
{{- $account := (get .root.Values .part).serviceAccount -}}
{{- if $account.create -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "mizar.serviceAccountName" . }}
  labels:
    {{- include "mizar.labels" . | nindent 4 }}
  namespace: {{ .root.Release.Namespace }}
  {{- with merge (dict) (.annotations | default dict) ($account.annotations | default dict) }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}
{{- end -}}

{{- /* Fails if two parts have the same service account: policies know each program by it. */ -}}
{{- define "mizar.accountsDiffer" -}}
{{- $known := dict -}}
{{- range $part := list "operator" "webhook" "nodeagent" "uninstall" -}}
{{- $name := include "mizar.serviceAccountName" (dict "root" $ "part" $part) -}}
{{- if hasKey $known $name -}}
{{- fail (printf "%s and %s would both run as the service account %s, but policies limit each program by its own: change serviceAccount.name of one" (get $known $name) $part $name) -}}
{{- end -}}
{{- $_ := set $known $name $part -}}
{{- end -}}
{{- end -}}

{{- /* The user name of a component's service account. */ -}}
{{- define "mizar.userName" -}}
system:serviceaccount:{{ .root.Release.Namespace }}:{{ include "mizar.serviceAccountName" . }}
{{- end -}}

{{- /* "true" if an object has all that is wanted of it. Call with (list $wanted $found). What it has in addition, such as
defaults, does not count. */ -}}
{{- define "mizar.isPart" -}}
{{- $found := last . -}}
{{- $same := true -}}
{{- if kindIs "map" (first .) -}}
{{- $same = kindIs "map" $found -}}
{{- range $key, $value := first . -}}
{{- $same = and $same (eq (include "mizar.isPart" (list $value (get $found $key))) "true") -}}
{{- end -}}
{{- else if kindIs "slice" (first .) -}}
{{- $same = and (kindIs "slice" $found) (eq (len (first .)) (len $found)) -}}
{{- range $at, $value := first . -}}
{{- $same = and $same (eq (include "mizar.isPart" (list $value (index $found $at))) "true") -}}
{{- end -}}
{{- else -}}
{{- $same = eq (first . | toJson | trimAll "\"") ($found | toJson | trimAll "\"") -}}
{{- end -}}
{{- $same -}}
{{- end -}}

{{- /* Where the section of an alert in docs/runbooks/alerts.md can be read; "" without metrics.runbooks. Call with
(list $ "MizarX"). */ -}}
{{- define "mizar.runbookUrl" -}}
{{- $name := last . -}}
{{- with (first .).Values.metrics.runbooks -}}
runbook_url: {{ printf "%s#%s" . (lower $name) | quote }}
{{- end -}}
{{- end -}}

{{- /* Fails if defaultPool.spec has a field that a GPUPool lacks, which the API server would ignore, or a word or a
fraction that is none of a field's, for which it would refuse the pool only when helm has succeeded. The CRD says what
there is. */ -}}
{{- define "mizar.checkDefaultPool" -}}
{{- if .Values.defaultPool.create -}}
{{- $crd := .Files.Get "crds/gpupools.yaml" | fromYaml -}}
{{- $schema := (first $crd.spec.versions).schema.openAPIV3Schema.properties.spec -}}
{{- include "mizar.checkFields" (list "defaultPool.spec" $schema .Values.defaultPool.spec) -}}
{{- end -}}
{{- end -}}

{{- /* Call with (list $path $schema $value). */ -}}
{{- define "mizar.checkFields" -}}
{{- $path := index . 0 -}}
{{- $schema := index . 1 -}}
{{- $value := index . 2 -}}
{{- if and (kindIs "map" $value) $schema.properties -}}
{{- range $name, $one := $value -}}
{{- if hasKey $schema.properties $name -}}
{{- include "mizar.checkFields" (list (printf "%s.%s" $path $name) (get $schema.properties $name) $one) -}}
{{- else -}}
{{- $known := keys $schema.properties | sortAlpha | join ", " -}}
{{- fail (printf "%s: a GPUPool has no field %s there, only %s" $path $name $known) -}}
{{- end -}}
{{- end -}}
{{- else if and (kindIs "slice" $value) $schema.items -}}
{{- range $at, $one := $value -}}
{{- include "mizar.checkFields" (list (printf "%s[%d]" $path $at) $schema.items $one) -}}
{{- end -}}
{{- else if and $schema.enum (not (kindIs "invalid" $value)) (not (has $value $schema.enum)) -}}
{{- fail (printf "%s: %v is none of %s" $path $value (join ", " $schema.enum)) -}}
{{- else if and (get $schema "x-kubernetes-int-or-string") (kindIs "float64" $value) (ne (floor $value) $value) -}}
{{- fail (printf "%s: write %v in quotes: Kubernetes accepts no such number here" $path $value) -}}
{{- end -}}
{{- end -}}
