{{- /* Fails if the webhook cannot have its ports. */ -}}
{{- define "mizar.webhook.ports" -}}
{{- $webhook := .Values.webhook -}}
{{- if eq (int $webhook.port) (int $webhook.metricsPort) -}}
{{- fail (printf "webhook.port and webhook.metricsPort are both %d: the webhook needs two ports" (int $webhook.port)) -}}
{{- end -}}
{{- if and $webhook.hostNetwork .Values.openshift.enabled -}}
{{- fail "webhook.hostNetwork does not work with openshift.enabled, whose SecurityContextConstraints allow the webhook no host network: OpenShift's API servers reach pods, so leave it out" -}}
{{- end -}}
{{- end -}}
