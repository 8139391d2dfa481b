{{- define "mizar.name" -}}
{{- printf "%s-%s" .root.Release.Name .component | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "mizar.selector" -}}
app.kubernetes.io/name: mizar
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "mizar.labels" -}}
{{ include "mizar.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "mizar.image" -}}
{{- $values := .root.Values.image -}}
{{- printf "%s/%s:%s" $values.registry .image (default .root.Chart.AppVersion $values.tag) -}}
{{- end -}}

{{- define "mizar.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}
