{{/* Arguments of each: a dict of root (the chart's context), name and pool. */}}
{{- define "prolepsis.name" -}}{{ .root.Release.Name }}-{{ .name }}{{- end }}

{{- define "prolepsis.selector" -}}
app.kubernetes.io/name: prolepsis
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .name }}
{{- end }}

{{- define "prolepsis.metadata" -}}
name: {{ include "prolepsis.name" . }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "prolepsis.selector" . | nindent 2 }}
  {{- with .root.Values.region }}
  topology.kubernetes.io/region: {{ . | quote }}
  {{- end }}
{{- end }}

{{/* A pass runs on all cores of the node unless `threads` says otherwise, and with a limit of CPU its threads would wait for one another. */}}
{{- define "prolepsis.config" -}}
{{- $config := mergeOverwrite (deepCopy .root.Values.config) (.pool.config | default dict) -}}
{{- with .root.Values.region }}{{ $_ := set $config "region" . }}{{ end -}}
{{- $resources := .pool.resources | default dict -}}
{{- $cpus := dig "limits" "cpu" (dig "requests" "cpu" "" $resources) $resources | toString -}}
{{- if and (regexMatch "^[1-9][0-9]*$" $cpus) (not (hasKey $config "threads")) }}{{ $_ := set $config "threads" (int $cpus) }}{{ end -}}
{{- if or .pool.proposes .pool.proposer -}}
{{- $terms := dict "key" "/etc/prolepsis/secret/proposer.key" -}}
{{- with .pool.proposer -}}
{{- if not (dig . "proposes" "" $.root.Values.pools) }}{{ fail (printf "pools.%s.proposer is %q; allowed: a pool with `proposes`" $.name .) }}{{ end -}}
{{- $_ := set $terms "address" (printf "%s-%s:8600" $.root.Release.Name .) -}}
{{- end -}}
{{- $_ := set $config "remote_proposer" (merge $terms ($config.remote_proposer | default dict)) -}}
{{- end -}}
{{ toYaml $config }}
{{- end }}

{{/* keda, adapter or cpu; a pool that drafts has no queue. */}}
{{- define "prolepsis.scaler" -}}
{{- if .pool.scaling -}}
{{- $by := .pool.scaling.by | default (ternary "cpu" "keda" (not (empty .pool.proposes))) -}}
{{- if and .pool.proposes (ne $by "cpu") }}{{ fail (printf "pools.%s.scaling.by is %q; allowed for a pool that drafts: cpu" .name $by) }}{{ end -}}
{{ $by }}
{{- end -}}
{{- end }}

{{/* The Service that a host leads to; root, host and name. */}}
{{- define "prolepsis.served" -}}
{{- if or (not (hasKey .root.Values.pools .name)) (dig .name "proposes" "" .root.Values.pools) }}
{{- fail (printf "hosts.%s is %q; allowed: a pool of servers" .host .name) }}
{{- end -}}
{{ .root.Release.Name }}-{{ .name }}
{{- end }}

{{- define "prolepsis.account" -}}
{{ .Values.serviceAccount.name | default (ternary (printf "%s-prolepsis" .Release.Name) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- define "prolepsis.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
