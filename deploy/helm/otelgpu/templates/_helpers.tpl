{{- /* The parts that the two modes share. */ -}}

{{- define "otelgpu.labels" -}}
app.kubernetes.io/name: otelgpu
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "otelgpu.metadata" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "otelgpu.endpoint" -}}
{{- if .Values.endpoint }}{{ .Values.endpoint }}
{{- else if not .Values.collector.enabled }}{{ fail "collector.enabled is false: say with endpoint=http://HOST:4317 where the agent is to send" }}
{{- else if eq .Values.mode "sidecar" }}http://127.0.0.1:4317
{{- else }}http://otelgpu-collector.{{ .Release.Namespace }}:4317
{{- end }}
{{- end }}

{{- define "otelgpu.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* What is there while helm test runs: .weight, by which it is made */ -}}
{{- define "otelgpu.test" -}}
helm.sh/hook: test
helm.sh/hook-weight: {{ .weight | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{- define "otelgpu.pod" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{- define "otelgpu.annotations" -}}
{{- $annotations := deepCopy (.Values.podAnnotations | default dict) }}
{{- if .Values.config }}{{ $_ := set $annotations "checksum/otelgpu" (toYaml .Values.config | sha256sum) }}{{ end }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "otelgpu.probe" -}}
httpGet:
  path: {{ .path }}
  port: {{ .port }}
{{- end }}

{{- /* How often a monitor of the Prometheus operator asks; without, as that Prometheus does. */ -}}
{{- define "otelgpu.scrape" -}}
{{- with .interval }}
interval: {{ . }}
{{- end }}
{{- with .scrapeTimeout }}
scrapeTimeout: {{ . }}
{{- end }}
{{- end }}

{{- /* What a container is told of its pod. */ -}}
{{- define "otelgpu.own.pod" -}}
{{- range $name, $path := dict "NODE_NAME" "spec.nodeName" "POD_NAME" "metadata.name" "POD_NAMESPACE" "metadata.namespace" "POD_UID" "metadata.uid" }}
- name: OTELGPU_{{ $name }}
  valueFrom:
    fieldRef:
      fieldPath: {{ $path }}
{{- end }}
{{- end }}

{{- /* The agent's container, without the name of its port's probes: .port */ -}}
{{- define "otelgpu.agent" -}}
image: {{ include "otelgpu.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args: [agent, --config, /etc/otelgpu/config.yaml]
env:
  - name: OTEL_EXPORTER_OTLP_ENDPOINT
    value: {{ include "otelgpu.endpoint" . }}
  - name: OTELGPU_HEALTH_ADDRESS # the kubelet asks the pod's address
    value: 0.0.0.0:13134
  {{- include "otelgpu.own.pod" . | nindent 2 }}
  {{- if .Values.switch.enabled }}
  - name: OTELGPU_SWITCH_FILE
    value: {{ include "otelgpu.switch.file" . }}
  {{- else if .Values.switch.profiles.enabled }}{{ fail "switch.profiles.enabled: it needs switch.enabled, which is of mode daemonset" }}
  {{- end }}
  {{- with .Values.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  - name: {{ .port }}
    containerPort: 13134
startupProbe:
  {{- include "otelgpu.probe" (dict "path" "/healthz" "port" .port) | nindent 2 }}
  periodSeconds: 1
  failureThreshold: 60
livenessProbe:
  {{- include "otelgpu.probe" (dict "path" "/healthz" "port" .port) | nindent 2 }}
  periodSeconds: 20
  timeoutSeconds: 5
{{- with .Values.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
volumeMounts:
  - name: tracing
    mountPath: /sys/kernel/tracing
    readOnly: true
  - name: run
    mountPath: /run/otelgpu
  {{- if .Values.config }}
  - name: config
    mountPath: /etc/otelgpu
    readOnly: true
  {{- end }}
{{- end }}

{{- define "otelgpu.agent.privileges" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  add:
    {{- toYaml .Values.capabilities | nindent 4 }}
{{- end }}

{{- /* Where watch-pods writes what pods ask for, and the agent reads it. */ -}}
{{- define "otelgpu.switch.file" -}}
{{- if ne .Values.mode "daemonset" }}{{ fail "switch.enabled: the switch is of mode daemonset" }}{{ end -}}
/run/otelgpu/switches.json
{{- end }}

{{- /* The container watch-pods, and the token that is mounted into it alone. */ -}}
{{- define "otelgpu.watch.pods" -}}
- name: watch-pods
  image: {{ include "otelgpu.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args: [watch-pods, --output, {{ include "otelgpu.switch.file" . }}{{ if .Values.switch.profiles.enabled }}, --profiles, /run/otelgpu/profiles.json{{ end }}]
  env:
    - name: OTELGPU_NODE_NAME
      valueFrom:
        fieldRef:
          fieldPath: spec.nodeName
    {{- with .Values.switch.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.switch.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
  volumeMounts:
    - name: run
      mountPath: /run/otelgpu
    - name: api-server
      mountPath: /var/run/secrets/kubernetes.io/serviceaccount
      readOnly: true
{{- end }}

{{- define "otelgpu.watch.pods.volumes" -}}
- name: api-server
  projected:
    sources:
      - serviceAccountToken:
          path: token
          expirationSeconds: 3600
      - configMap:
          name: kube-root-ca.crt
          optional: true # where it is missing the agent starts all the same, and watch-pods says so
          items:
            - key: ca.crt
              path: ca.crt
{{- end }}

{{- /* The container profile-pods, with the agent's privileges and settings, and without the token. */ -}}
{{- define "otelgpu.profile.pods" -}}
- name: profile-pods
  image: {{ include "otelgpu.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args:
    - profile-pods
    - --requests=/run/otelgpu/profiles.json
    - --output=/var/lib/otelgpu
    - --config=/etc/otelgpu/config.yaml
    {{- with .Values.switch.profiles }}
    - --longest={{ .longestSeconds }}
    - --pause={{ .pauseSeconds }}
    - --keep={{ .keep }}
    {{- end }}
  env:
    - name: OTEL_EXPORTER_OTLP_ENDPOINT
      value: {{ include "otelgpu.endpoint" . }}
    {{- include "otelgpu.own.pod" . | nindent 4 }}
    {{- with .Values.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.switch.profiles.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- include "otelgpu.agent.privileges" . | nindent 4 }}
  volumeMounts:
    - name: tracing
      mountPath: /sys/kernel/tracing
      readOnly: true
    - name: run
      mountPath: /run/otelgpu
      readOnly: true
    - name: profiles
      mountPath: /var/lib/otelgpu
    {{- if .Values.config }}
    - name: config
      mountPath: /etc/otelgpu
      readOnly: true
    {{- end }}
{{- end }}

{{- define "otelgpu.agent.volumes" -}}
- name: tracing
  hostPath:
    path: /sys/kernel/tracing
    type: Directory
- name: run
  emptyDir:
    medium: Memory
    sizeLimit: 16Mi
{{- if .Values.config }}
- name: config
  configMap:
    name: otelgpu
{{- end }}
{{- end }}

{{- /* The Collector's container: .file, .port and .memory, a request and a limit in MiB */ -}}
{{- define "otelgpu.collector" -}}
image: {{ .Values.collector.image }}
args: [--config=/etc/otelcol/{{ .file }}, --config=/etc/otelcol/backend.yaml]
{{- with .env }}
env:
  {{- toYaml . | nindent 2 }}
{{- end }}
startupProbe:
  {{- include "otelgpu.probe" (dict "path" "/" "port" .port) | nindent 2 }}
  periodSeconds: 1
  failureThreshold: 60
livenessProbe:
  {{- include "otelgpu.probe" (dict "path" "/" "port" .port) | nindent 2 }}
  periodSeconds: 20
  timeoutSeconds: 5
resources:
  {{- toYaml (.Values.collector.resources | default .resources) | nindent 2 }}
{{- end }}
