{{- /* The values of strategy, also and nriGives that apply to at least one node, overrides included, as JSON. */ -}}
{{- define "mizar.nodeagent.accessInUse" -}}
{{- $ways := list -}}
{{- $gives := list -}}
{{- range include "mizar.nodeagent.cardAccesses" . | fromJsonArray -}}
{{- $ways = append (concat $ways (.also | default list)) .strategy -}}
{{- $gives = append $gives .nriGives -}}
{{- end -}}
{{- dict "ways" $ways "gives" $gives | toJson -}}
{{- end -}}

{{- /* cardAccess of all nodes and that of each override, as a JSON list. */ -}}
{{- define "mizar.nodeagent.cardAccesses" -}}
{{- $found := list .Values.nodeagent.cardAccess -}}
{{- range .Values.nodeagent.overrides -}}
{{- $found = append $found (dig "cardAccess" (dict) .settings) -}}
{{- end -}}
{{- $found | toJson -}}
{{- end -}}

{{- /* Folders of device nodes that agents read, as a JSON list. Empty unless at least one node, overrides included,
may give device nodes to containers. */ -}}
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

{{- /* Where the agent's container has the node's folders of device nodes: its own /dev is not the node's. */ -}}
{{- define "mizar.nodeagent.hostRoot" -}}
/host
{{- end -}}

{{- /* Where the node's root is mounted in a privileged agent, which takes the driver from there if no runtime
provides it. Empty with a runtimeClassName, which provides the driver, or with a driverRoot other than /. */ -}}
{{- define "mizar.nodeagent.nodesRoot" -}}
{{- $agent := .Values.nodeagent -}}
{{- if and $agent.privileged (not $agent.runtimeClassName) (eq (clean $agent.driverRoot) "/") -}}
/node
{{- end -}}
{{- end -}}

{{- /* Whether only the node's default runtime can give the agent's own container the driver's devices. */ -}}
{{- define "mizar.nodeagent.byDefaultRuntime" -}}
{{- $agent := .Values.nodeagent -}}
{{- $alone := not (or $agent.privileged $agent.runtimeClassName) -}}
{{- range $agent.extraVolumeMounts -}}
{{- $alone = and $alone (not (hasPrefix "/dev" .mountPath)) -}}
{{- end -}}
{{- $alone -}}
{{- end -}}

{{- /* The folders of containerd's configuration that agents read, as a JSON list. Empty unless at least one node,
overrides included, may give cards by NVIDIA_VISIBLE_DEVICES, or by CDI devices, which containerd may ignore. */ -}}
{{- define "mizar.nodeagent.containerdDirs" -}}
{{- $inUse := include "mizar.nodeagent.accessInUse" . | fromJson -}}
{{- $used := $inUse.ways -}}
{{- $gives := $inUse.gives -}}
{{- $found := list -}}
{{- $read := list "EnvVar" "CDI" "Auto" -}}
{{- $matters := false -}}
{{- range $read -}}
{{- $matters = or $matters (has . $used) (and (has "NRI" $used) (has . $gives)) -}}
{{- end -}}
{{- if $matters -}}
{{- range include "mizar.nodeagent.cardAccesses" . | fromJsonArray -}}
{{- with .containerdConfig -}}
{{- $found = append $found (dir .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $found | uniq | toJson -}}
{{- end -}}

{{- /* Whether the agents may kill processes that do not run as root: "true" or "false". The default pool's Strict
means that they must. */ -}}
{{- define "mizar.nodeagent.mayKill" -}}
{{- $agent := .Values.nodeagent -}}
{{- $pool := ternary (.Values.defaultPool.spec | default dict) (dict) .Values.defaultPool.create -}}
{{- $quota := $pool.defaultQuota | default dict -}}
{{- $strict := list ($pool.isolation | default dict).enforcement ($quota.isolation | default dict).enforcement -}}
{{- or .Values.spot.enabled $agent.privileged $agent.mayKill (has "Strict" $strict) -}}
{{- end -}}

{{- /* The capabilities of an agent that is not privileged, as a JSON list. */ -}}
{{- define "mizar.nodeagent.capabilities" -}}
{{- ternary (list "DAC_OVERRIDE" "KILL") (list "DAC_OVERRIDE") (eq (include "mizar.nodeagent.mayKill" .) "true") | toJson -}}
{{- end -}}

{{- /* The agent's SELinux context, as a JSON object: what the values say, and on OpenShift otherwise spc_t, which may open
the kubelet's and the runtime's sockets. Its level has no categories, so that pods with any may use the files it makes. */ -}}
{{- define "mizar.nodeagent.seLinux" -}}
{{- $chosen := ternary (dict "type" "spc_t" "level" "s0") (dict) .Values.openshift.enabled -}}
{{- .Values.nodeagent.seLinuxOptions | default $chosen | toJson -}}
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
heartbeatTimeoutSeconds: {{ .Values.nodeagent.heartbeatTimeoutSeconds }}
ownerWaitSeconds: {{ .Values.nodeagent.ownerWaitSeconds }}
metricsPort: {{ .Values.nodeagent.metricsPort }}
logLevel: {{ .Values.logLevel }}
cardAccess:
  {{- toYaml .Values.nodeagent.cardAccess | nindent 2 }}
  {{- if include "mizar.nodeagent.devRoots" . | fromJsonArray }}
  hostRoot: {{ include "mizar.nodeagent.hostRoot" . }}
  {{- end }}
{{- end -}}
