{{- /* CEL: whether the request is the operator's. Call with the root. */ -}}
{{- define "mizar.cel.isOperator" -}}
request.userInfo.username == '{{ include "mizar.userName" (dict "root" . "part" "operator") }}'
{{- end -}}

{{- /* CEL: Kubernetes' own controllers, whether they have service accounts or not. */ -}}
{{- define "mizar.cel.isController" -}}
(request.userInfo.username.startsWith('system:kube-') ||
request.userInfo.username.startsWith('system:apiserver') ||
(has(request.userInfo.groups) && 'system:serviceaccounts:kube-system' in request.userInfo.groups))
{{- end -}}

{{- define "mizar.cel.isKubelet" -}}
(has(request.userInfo.groups) && 'system:nodes' in request.userInfo.groups)
{{- end -}}

{{- /* CEL: people and programs that administer nodes: cluster administrators, autoscalers, network plugins. */ -}}
{{- define "mizar.cel.administersNodes" -}}
(authorizer.group('').resource('nodes').check('update').allowed() ||
authorizer.group('').resource('nodes').check('patch').allowed())
{{- end -}}

{{- /* CEL: whether a field of the metadata is as it was. Call with its name. */ -}}
{{- define "mizar.cel.unchanged" -}}
(has(object.metadata.{{ . }}) ? [object.metadata.{{ . }}] : []) ==
(has(oldObject.metadata.{{ . }}) ? [oldObject.metadata.{{ . }}] : [])
{{- end -}}

{{- /* CEL: the same for a field of a pod's spec. */ -}}
{{- define "mizar.cel.unchangedSpec" -}}
(has(object.spec.{{ . }}) ? [object.spec.{{ . }}] : []) ==
(has(oldObject.spec.{{ . }}) ? [oldObject.spec.{{ . }}] : [])
{{- end -}}

{{- /* A policy's binding. Call with (dict "root" $ "part" ... "action" "Warn"); the action is Deny by default. */ -}}
{{- define "mizar.policyBinding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  {{- include "mizar.meta" . | nindent 2 }}
spec:
  policyName: {{ include "mizar.name" .root }}-{{ .part }}
  validationActions: [{{ .action | default "Deny" }}]
{{- end -}}
