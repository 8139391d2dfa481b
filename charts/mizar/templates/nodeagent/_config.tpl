{{- define "mizar.nodeagent.config" -}}
kubeletDir: {{ .Values.nodeagent.kubeletDir }}
stateDir: {{ .Values.nodeagent.stateDir }}
driverRoot: {{ .Values.nodeagent.driverRoot }}
hamiAnnotations: {{ .Values.nodeagent.hamiAnnotations }}
failOnInitError: {{ .Values.nodeagent.failOnInitError }}
failRequestsGreaterThanOne: {{ .Values.nodeagent.failRequestsGreaterThanOne }}
metricsPort: {{ .Values.nodeagent.metricsPort }}
logLevel: {{ .Values.logLevel }}
cardAccess:
  {{- toYaml .Values.nodeagent.cardAccess | nindent 2 }}
{{- end -}}
