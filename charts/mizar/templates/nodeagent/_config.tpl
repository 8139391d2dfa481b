{{- define "mizar.nodeagent.config" -}}
kubeletDir: {{ .Values.nodeagent.kubeletDir }}
stateDir: {{ .Values.nodeagent.stateDir }}
metricsPort: {{ .Values.nodeagent.metricsPort }}
logLevel: {{ .Values.logLevel }}
cardAccess:
  {{- toYaml .Values.nodeagent.cardAccess | nindent 2 }}
{{- end -}}
