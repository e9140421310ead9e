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

{{- define "prolepsis.config" -}}
{{- $config := mergeOverwrite (deepCopy .root.Values.config) (.pool.config | default dict) -}}
{{- with .root.Values.region }}{{ $_ := set $config "region" . }}{{ end -}}
{{ toYaml $config }}
{{- end }}
