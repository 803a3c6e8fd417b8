{{- define "declctl.name" -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- end -}}

{{- define "declctl.selector" -}}
app.kubernetes.io/name: declctl
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "declctl.labels" -}}
{{ include "declctl.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "declctl.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "declctl.name" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{- define "declctl.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}
