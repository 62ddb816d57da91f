{{- define "imex-dra.labels" -}}
app.kubernetes.io/name: imex-dra
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- with .Values.extraLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* Of a program's pods: a list of the root context and the name of the program. */}}
{{- define "imex-dra.selector" -}}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- /* Without the version: a new chart alone is no reason to restart a pod. */}}
{{- define "imex-dra.podMetadata" -}}
labels:
  app.kubernetes.io/name: imex-dra
  {{- include "imex-dra.selector" . | nindent 2 }}
  {{- with (index . 0).Values.extraLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with (index . 0).Values.extraPodAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "imex-dra.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{- define "imex-dra.pull" -}}
image: {{ include "imex-dra.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- define "imex-dra.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Of programs without privileges. */}}
{{- define "imex-dra.unprivileged" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* Of a Deployment's pods: a list of the root context, the name of the program and its values. */}}
{{- define "imex-dra.deploymentPlacement" -}}
{{- $values := index . 2 -}}
priorityClassName: {{ $values.priorityClassName }}
topologySpreadConstraints:
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "imex-dra.selector" . | nindent 6 }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
tolerations:
  {{- toYaml $values.tolerations | nindent 2 }}
{{- end }}

{{- /* A list of the root context and the port that serves metrics and health. */}}
{{- define "imex-dra.probes" -}}
{{- if (index . 0).Values.metrics.enabled }}
livenessProbe:
  httpGet: {path: /livez, port: {{ index . 1 }}}
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: {{ index . 1 }}}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}
{{- end }}

{{- /* An empty address: nothing is served. */}}
{{- define "imex-dra.metricsFlag" -}}
- --metrics-address={{ if (index . 0).Values.metrics.enabled }}:{{ index . 1 }}{{ end }}
{{- end }}

{{- /* In a NetworkPolicy: who may read metrics. Probes come from the node, which policies do not stop. */}}
{{- define "imex-dra.metricsIngress" -}}
{{- if .Values.metrics.enabled }}
- ports: [{port: 8080}]
  {{- with .Values.networkPolicies.metricsFrom }}
  from:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "imex-dra.simulated" -}}
{{- if eq .Values.hardware.type "simulated" }}true{{ end }}
{{- end }}

{{- /* Shared by `imex node` and the supervisor of nvidia-imex; it must not survive a reboot. */}}
{{- define "imex-dra.imexDirectory" -}}
{{- if include "imex-dra.simulated" . -}}
{{ .Values.hardware.simulated.directory }}/run/imex
{{- else -}}
/run/imex-dra/imex
{{- end }}
{{- end }}

{{- /* For `imex-chroot`, in both pods: the root of the host, with what is mounted there later (the driver root of the GPU Operator), and
the directory under the same path as on the host. persist.dat is in /run/nvidia-imex of the host, so it is not a volume of its own. */}}
{{- define "imex-dra.driverMounts" -}}
- {name: host, mountPath: /host, mountPropagation: HostToContainer}
{{- if eq .Values.imex.mode "managed" }}
- {name: imex, mountPath: {{ include "imex-dra.imexDirectory" . }}}
{{- end }}
{{- end }}

{{- define "imex-dra.driverVolumes" -}}
- {name: host, hostPath: {path: /}}
{{- if eq .Values.imex.mode "managed" }}
- {name: imex, hostPath: {path: {{ include "imex-dra.imexDirectory" . }}, type: DirectoryOrCreate}}
{{- end }}
{{- end }}

{{- /* The GPU Operator sets these labels before it unloads the GPU driver, and back when the new one is there: `client` (since 26.7) for
programs of others that use the driver, `device-plugin` also before, `dra-validator` where it runs a DRA driver for GPUs. A Node without
them matches. It waits only for the end of pods that have `client` in their nodeSelector (daemon.nodeSelector). */}}
{{- define "imex-dra.notPaused" -}}
- {key: nvidia.com/gpu.deploy.client, operator: NotIn, values: [paused-for-driver-upgrade, paused-for-mig-change]}
- {key: nvidia.com/gpu.deploy.device-plugin, operator: NotIn, values: [paused-for-driver-upgrade]}
- {key: nvidia.com/gpu.deploy.dra-validator, operator: NotIn, values: [paused-for-driver-upgrade]}
{{- end }}

{{- define "imex-dra.defaultAffinity" -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
    - matchExpressions:
      - {key: nvidia.com/gpu.present, operator: In, values: ["true"]}
{{- end }}

{{- /* Of the pods on nodes: a list of the root context and the name of the program. Only nvidia-imex leaves the node for an upgrade of the
GPU driver: without `imex node` no pod with a channel could end there. */}}
{{- define "imex-dra.nodePlacement" -}}
{{- $program := index . 1 -}}
{{- with index . 0 }}
{{- with merge (dict) (eq $program "daemon" | ternary .Values.daemon.nodeSelector (dict)) .Values.node.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $simulated := include "imex-dra.simulated" . }}
{{- $affinity := dict }}
{{- if kindIs "map" .Values.node.affinity }}
{{- $affinity = deepCopy .Values.node.affinity }}
{{- else if not $simulated }}
{{- $affinity = include "imex-dra.defaultAffinity" . | fromYaml }}
{{- end }}
{{- if and (eq $program "daemon") (not $simulated) }}
{{- $node := $affinity.nodeAffinity | default dict }}
{{- $required := $node.requiredDuringSchedulingIgnoredDuringExecution | default dict }}
{{- $notPaused := include "imex-dra.notPaused" . | fromYamlArray }}
{{- $terms := list }}
{{- range $required.nodeSelectorTerms | default (list dict) }}
{{- $terms = append $terms (set . "matchExpressions" (concat (.matchExpressions | default list) $notPaused)) }}
{{- end }}
{{- $_ := set $node "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) }}
{{- $_ := set $affinity "nodeAffinity" $node }}
{{- end }}
{{- with $affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
tolerations:
  {{- toYaml .Values.node.tolerations | nindent 2 }}
priorityClassName: {{ if .Values.priorityClasses.create }}imex-dra-node{{ else }}system-node-critical{{ end }}
{{- end }}
{{- end }}

{{- define "imex-dra.nodeEnvironment" -}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: HOST_IP
  valueFrom: {fieldRef: {fieldPath: status.hostIP}}
{{- if include "imex-dra.simulated" . }}
- name: IMEX_NODE_ROOT
  value: {{ .Values.hardware.simulated.directory }}
- name: IMEX_FABRIC_DIR
  value: {{ .Values.hardware.simulated.fabricDirectory }}
{{- end }}
{{- end }}

{{- /* Makes the directory of the simulated node. Both pods do it: either may start first, and a reboot may empty it. */}}
{{- define "imex-dra.simulatedNode" -}}
{{- if include "imex-dra.simulated" . }}
initContainers:
- name: simulated-node
  {{- include "imex-dra.pull" . | nindent 2 }}
  args:
  - simulate-node
  - --directory={{ .Values.hardware.simulated.directory }}
  - --profile={{ .Values.hardware.simulated.profile }}
  - --partition={{ .Values.hardware.simulated.partition }}
  - --address=$(HOST_IP)
  env:
    {{- include "imex-dra.nodeEnvironment" . | nindent 4 }}
  securityContext: {runAsUser: 0, runAsGroup: 0}
  volumeMounts:
  - {name: node, mountPath: {{ .Values.hardware.simulated.directory }}}
{{- end }}
{{- end }}

{{/* Values that exclude each other: helm says so, before a pod does. */}}
{{- define "imex-dra.checkValues" -}}
{{- if and (eq .Values.daemon.network "pod") (or (include "imex-dra.simulated" .) (ne .Values.imex.mode "managed")) }}
{{- fail "daemon.network=pod needs hardware.type=nvml and imex.mode=managed: simulated hardware and the nvidia-imex of a host have the address of the node; use daemon.network=host" }}
{{- end }}
{{- end }}
