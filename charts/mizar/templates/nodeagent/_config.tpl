{{- /* Folders of device nodes that agents look into, as a JSON list: where any node, by its overrides, may
give containers device nodes. */ -}}
{{- define "mizar.nodeagent.devRoots" -}}
{{- $agent := .Values.nodeagent -}}
{{- $settings := list $agent.cardAccess -}}
{{- range $agent.overrides -}}
{{- $settings = append $settings (dig "cardAccess" (dict) .settings) -}}
{{- end -}}
{{- $ways := list -}}
{{- $gives := list -}}
{{- $mounts := false -}}
{{- $needed := false -}}
{{- $roots := list -}}
{{- range $settings -}}
{{- $ways = concat $ways (without (list .strategy) nil) (.also | default list) -}}
{{- $gives = concat $gives (without (list .nriGives) nil) -}}
{{- $mounts = or $mounts .mounts -}}
{{- $needed = or $needed .passDeviceSpecs -}}
{{- with .devRoot -}}
{{- $roots = append $roots (clean .) -}}
{{- end -}}
{{- end -}}
{{- $auto := has "Auto" $ways -}}
{{- if or $auto (has "NRI" $ways) -}}
{{- $auto = or $auto (has "Auto" $gives) -}}
{{- $needed = or $needed (has "Mounts" $gives) -}}
{{- end -}}
{{- if or $needed (has "Mounts" $ways) (and $auto $mounts) -}}
{{- if not $agent.cardAccess.devRoot -}}
{{- $roots = append $roots (clean (printf "%s/dev" $agent.driverRoot)) -}}
{{- end -}}
{{- $roots | uniq | toJson -}}
{{- else -}}
[]
{{- end -}}
{{- end -}}

{{- /* Where agents find the node's folders of device nodes: their own /dev is not the node's. */ -}}
{{- define "mizar.nodeagent.hostRoot" -}}
/host
{{- end -}}

{{- define "mizar.nodeagent.config" -}}
kubeletDir: {{ .Values.nodeagent.kubeletDir }}
stateDir: {{ .Values.nodeagent.stateDir }}
driverRoot: {{ .Values.nodeagent.driverRoot }}
hamiAnnotations: {{ .Values.nodeagent.hamiAnnotations }}
failOnInitError: {{ .Values.nodeagent.failOnInitError }}
ignoredXids: {{ .Values.nodeagent.ignoredXids | toJson }}
failRequestsGreaterThanOne: {{ .Values.nodeagent.failRequestsGreaterThanOne }}
metricsPort: {{ .Values.nodeagent.metricsPort }}
logLevel: {{ .Values.logLevel }}
cardAccess:
  {{- toYaml .Values.nodeagent.cardAccess | nindent 2 }}
  {{- if include "mizar.nodeagent.devRoots" . | fromJsonArray }}
  hostRoot: {{ include "mizar.nodeagent.hostRoot" . }}
  {{- end }}
{{- end -}}
