{{- /* What lets a pod that shares or borrows a card bypass its limits. Pods are checked by share-pods-limits.yaml,
       templates by share-templates-limits.yaml. Call both with (dict "root" $ "spec" "object.spec" "meta"
       "object.metadata" "pod" true): the paths of the pod spec and of the metadata beside it, and whether the object
       is a pod, of which some fields are checked only when it is created. */ -}}

{{- define "mizar.shareLimits.variables" -}}
{{- $root := .root -}}
{{- $cards := "NVIDIA_(VISIBLE_DEVICES|MIG_CONFIG_DEVICES|MIG_MONITOR_DEVICES)" -}}
{{- /* The container has these parts of the driver anyway. */ -}}
{{- $harmless := "has(e.value) && e.value.matches('^(compute|utility)(,(compute|utility))*$')" -}}
{{- /* Folders of the node that hold limits, devices or the files of containers; /var/run is written as /run. */ -}}
{{- $folders := list "/etc/cdi" "/etc/containerd" "/etc/crio" "/etc/kubernetes" "/etc/nri"
      "/etc/nvidia-container-runtime" "/etc/rancher" "/opt/nri" "/run/cdi" "/run/containerd" "/run/cri-dockerd.sock"
      "/run/crio" "/run/dbus" "/run/docker" "/run/docker.sock" "/run/k0s" "/run/k3s" "/run/nri" "/run/nvidia"
      "/run/podman" "/run/systemd" "/sys" "/var/lib/containerd" "/var/lib/containers" "/var/lib/docker" "/var/lib/k0s"
      "/var/lib/kubelet" "/var/lib/rancher" "/var/snap/microk8s" -}}
{{- /* Other paths to the same folders, which the kubelet and the runtime resolve on the node: links to the root of a
       process, and the folders in which ostree and Google's nodes keep the contents of /var. */ -}}
{{- $folders = concat $folders (list "/dev/core" "/dev/fd" "/dev/stderr" "/dev/stdin" "/dev/stdout"
      "/mnt/stateful_partition" "/ostree" "/proc" "/sysroot") -}}
{{- range list $root.Values.nodeagent.stateDir $root.Values.nodeagent.kubeletDir -}}
{{- $folders = append $folders (clean . | replace "/var/run/" "/run/") -}}
{{- end -}}
{{- if .pod }}
# Containers are checked when the pod is created, ephemeral containers when they are added.
{{- end }}
- name: made
  expression: >-
    {{ if .pod }}request.operation != 'CREATE' ? [] : {{ end -}}
    {{ .spec }}.containers + (has({{ .spec }}.initContainers) ? {{ .spec }}.initContainers : [])
- name: shares
  expression: variables.made.filter(c, {{ include "mizar.cel.hasDevices" $root }})
- name: others
  expression: variables.made.filter(c, !({{ include "mizar.cel.hasDevices" $root }}))
{{- $besides := list "others" }}
{{- if .pod }}
{{- $besides = append $besides "debug" }}
- name: debug
  expression: >-
    request.subResource == 'ephemeralcontainers' && has(object.spec.ephemeralContainers) ?
    object.spec.ephemeralContainers : []
{{- end }}
- name: visible
  expression: >-
    variables.shares.filter(c,
    {{- include "mizar.cel.setsVariable" (dict "names" $cards) | nindent 8 }}).map(c, c.name)
    {{- range $containers := $besides }}
    + variables.{{ $containers }}.filter(c, has(c.env) && c.env.exists(e, e.name.matches('^{{ $cards }}$')
    && (has(e.valueFrom) || (has(e.value) && !(e.value in ['', 'void', 'none']))))).map(c, c.name)
    {{- end }}
- name: driver
  expression: >-
    variables.shares.filter(c,
    {{- include "mizar.cel.setsVariable" (dict
        "names" "NVIDIA_(DRIVER_.*|GDS|MOFED|GDRCOPY|NVSWITCH|IMEX_CHANNELS|GPU_MEMORY_(REQUEST|LIMIT))"
        "except" (printf "e.name == 'NVIDIA_DRIVER_CAPABILITIES' && %s" $harmless)) | nindent 8 }}).map(c, c.name)
- name: mounting
  expression: >-
    variables.shares.filter(c, has(c.volumeMounts) && c.volumeMounts.exists(m,
    '..' in m.mountPath.split('/') || [{{ include "mizar.cel.cleanPath" "m.mountPath" }}].exists(p,
    ['/etc/ld.so.preload', '/run/mizar', '/run/nvidia-container-devices'].exists(f,
    {{ include "mizar.cel.touches" . }})))).map(c, c.name)
    {{- /* NVIDIA's runtime gives any container the cards that its mounts in this folder name. */}}
    {{- range $containers := $besides }}
    + variables.{{ $containers }}.filter(c, has(c.volumeMounts) && c.volumeMounts.exists(m,
    'nvidia-container-devices' in m.mountPath.split('/'))).map(c, c.name)
    {{- end }}
- name: folders
  expression: >-
    ({{ if .pod }}request.operation == 'CREATE' && {{ end }}has({{ .spec }}.volumes) ? {{ .spec }}.volumes : [])
    .filter(v, has(v.hostPath)).map(v, v.hostPath.path)
    .filter(path, [{{ include "mizar.cel.cleanPath" "path" }}].exists(p,
    {{ $folders | uniq | toJson | replace "\"" "'" }}.exists(f,
    {{ include "mizar.cel.touches" . }})))
- name: privileged
  expression: >-
    {{- range $at, $containers := prepend $besides "shares" }}
    {{ if $at }}+ {{ end }}variables.{{ $containers }}.filter(c,
    {{- include "mizar.cel.isPrivileged" . | nindent 8 }}).map(c, c.name)
    {{- end }}
{{- end -}}

{{- define "mizar.shareLimits.validations" -}}
{{- $may := .root.Values.policies.sharePodsMay -}}
{{- $begin := .pod | ternary "" "the API server will refuse its pods: " -}}
{{- $prefixes := list "cdi.k8s.io/" (.root.Values.nodeagent.cardAccess.cdiAnnotationPrefix | default "cdi.k8s.io/") | uniq -}}
{{- if not (has "visibleDevices" $may) }}
- expression: variables.visible.size() == 0
  messageExpression: >-
    '{{ $begin }}container ' + variables.visible.join(', ') + ' sets NVIDIA_VISIBLE_DEVICES or a similar variable, which can
    expose cards beyond the share that the pod requests: remove it, or set it to void if the container needs no card{{ include "mizar.mayAllow" "visibleDevices" }}'
- expression: >-
    !has({{ .meta }}.annotations) || {{ .meta }}.annotations.all(k,
    !({{ range $at, $prefix := $prefixes }}{{ if $at }} || {{ end }}k.startsWith('{{ $prefix }}'){{ end }})
    {{- if .pod }} ||
    (request.operation == 'UPDATE' && has(oldObject.metadata.annotations) &&
    k in oldObject.metadata.annotations &&
    oldObject.metadata.annotations[k] == object.metadata.annotations[k]){{ end }})
  message: >-
    {{ $begin }}an annotation cdi.k8s.io/... can expose cards beyond the share that the pod requests: remove it{{ include "mizar.mayAllow" "visibleDevices" }}
{{- end }}
{{- if not (has "driverVariables" $may) }}
- expression: variables.driver.size() == 0
  messageExpression: >-
    '{{ $begin }}container ' + variables.driver.join(', ') + ' sets NVIDIA_DRIVER_..., or a variable such as NVIDIA_GDS,
    which exposes parts of the driver that the limits do not cover, or NVIDIA_GPU_MEMORY_..., which can reserve memory of
    the card that others have a share of: remove it (NVIDIA_DRIVER_CAPABILITIES may be compute,utility); CUDA is available without it{{ include "mizar.mayAllow" "driverVariables" }}'
{{- end }}
{{- if not (has "mounts" $may) }}
- expression: variables.mounting.size() == 0
  messageExpression: >-
    '{{ $begin }}container ' + variables.mounting.join(', ') + ' mounts a volume over /etc/ld.so.preload, /run/mizar,
    /var/run/nvidia-container-devices or a parent folder of these, on which its limits depend:
    mount it elsewhere, for example at /run/app, and without .. in the path{{ include "mizar.mayAllow" "mounts" }}'
{{- end }}
{{- if not (has "hostPaths" $may) }}
- expression: variables.folders.size() == 0
  messageExpression: >-
    '{{ $begin }}a share pod may not have hostPath ' + variables.folders.join(', ') + ', where the node keeps
    limits, devices or containers: use a more specific folder of your own{{ include "mizar.mayAllow" "hostPaths" }}'
{{- end }}
{{- if not (has "hostPID" $may) }}
- expression: >-
    {{ if .pod }}request.operation != 'CREATE' || {{ end }}!has({{ .spec }}.hostPID) || !{{ .spec }}.hostPID
  message: "{{ $begin }}a share pod may not have hostPID, which shows it the node's processes: leave it out{{ include "mizar.mayAllow" "hostPID" }}"
{{- end }}
{{- if not (has "privileged" $may) }}
- expression: variables.privileged.size() == 0
  messageExpression: >-
    '{{ $begin }}container ' + variables.privileged.join(', ') + ' is privileged or has one of the capabilities SYS_ADMIN,
    SYS_MODULE, SYS_RAWIO and DAC_READ_SEARCH, which would let it use every card of the node and bypass its limits: share
    pods must have none of this{{ include "mizar.mayAllow" "privileged" }}'
{{- end }}
{{- end -}}
