{{- /* The ways in which any node, by its overrides, may give containers their cards, and what NRI may give
them, as JSON. */ -}}
{{- define "mizar.nodeagent.accessInUse" -}}
{{- $ways := list -}}
{{- $gives := list -}}
{{- range include "mizar.nodeagent.cardAccesses" . | fromJsonArray -}}
{{- $ways = append (concat $ways (.also | default list)) .strategy -}}
{{- $gives = append $gives .nriGives -}}
{{- end -}}
{{- dict "ways" $ways "gives" $gives | toJson -}}
{{- end -}}

{{- /* cardAccess of all nodes, and what overrides change of it, as a JSON list. */ -}}
{{- define "mizar.nodeagent.cardAccesses" -}}
{{- $found := list .Values.nodeagent.cardAccess -}}
{{- range .Values.nodeagent.overrides -}}
{{- $found = append $found (dig "cardAccess" (dict) .settings) -}}
{{- end -}}
{{- $found | toJson -}}
{{- end -}}

{{- /* Folders of device nodes that agents look into, as a JSON list: where any node, by its overrides, may
give containers device nodes. */ -}}
{{- define "mizar.nodeagent.devRoots" -}}
{{- $agent := .Values.nodeagent -}}
{{- $inUse := include "mizar.nodeagent.accessInUse" . | fromJson -}}
{{- $ways := $inUse.ways -}}
{{- $gives := $inUse.gives -}}
{{- $mounts := false -}}
{{- $needed := false -}}
{{- $roots := list -}}
{{- range include "mizar.nodeagent.cardAccesses" . | fromJsonArray -}}
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

{{- /* Where a privileged agent finds the node's root, and in it a driver that no runtime gives it;
empty where a runtime class does, or where the driver has a folder of its own. */ -}}
{{- define "mizar.nodeagent.nodesRoot" -}}
{{- $agent := .Values.nodeagent -}}
{{- if and $agent.privileged (not $agent.runtimeClassName) (eq (clean $agent.driverRoot) "/") -}}
/node
{{- end -}}
{{- end -}}

{{- /* Whether nothing but the node's default runtime can give the agent's own container the driver's
devices. */ -}}
{{- define "mizar.nodeagent.byDefaultRuntime" -}}
{{- $agent := .Values.nodeagent -}}
{{- $alone := not (or $agent.privileged $agent.runtimeClassName) -}}
{{- range $agent.extraVolumeMounts -}}
{{- $alone = and $alone (not (hasPrefix "/dev" .mountPath)) -}}
{{- end -}}
{{- $alone -}}
{{- end -}}

{{- /* Where containerd's configuration is that agents look into, as a JSON list: where any node may give
cards by the variable alone. */ -}}
{{- define "mizar.nodeagent.containerdDirs" -}}
{{- $inUse := include "mizar.nodeagent.accessInUse" . | fromJson -}}
{{- $used := $inUse.ways -}}
{{- $gives := $inUse.gives -}}
{{- $found := list -}}
{{- if or (has "EnvVar" $used) (has "Auto" $used) (and (has "NRI" $used) (or (has "EnvVar" $gives) (has "Auto" $gives))) -}}
{{- range include "mizar.nodeagent.cardAccesses" . | fromJsonArray -}}
{{- with .containerdConfig -}}
{{- $found = append $found (dir .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $found | uniq | toJson -}}
{{- end -}}

{{- define "mizar.nodeagent.config" -}}
kubeletDir: {{ .Values.nodeagent.kubeletDir }}
stateDir: {{ .Values.nodeagent.stateDir }}
driverRoot: {{ .Values.nodeagent.driverRoot }}
byDefaultRuntime: {{ include "mizar.nodeagent.byDefaultRuntime" . }}
{{- with include "mizar.nodeagent.nodesRoot" . }}
nodesRoot: {{ . }}
{{- end }}
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
