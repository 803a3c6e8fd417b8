{{- define "declctl.name" -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- end -}}

{{- /* As `declctl generate deploy`: the controller's name, or that of the release if it is no label or not known. */}}
{{- define "declctl.controller" -}}
{{- $named := dig "metadata" "name" "" (fromYaml (get .Values.bundle "manifest.yaml" | default "{}")) | toString -}}
{{- $found := ternary $named (include "declctl.name" .) (regexMatch "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$" $named) -}}
{{- .Values.nameOverride | default $found -}}
{{- end -}}

{{- define "declctl.selector" -}}
app.kubernetes.io/name: {{ include "declctl.controller" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "declctl.labels" -}}
{{ include "declctl.selector" . }}
app.kubernetes.io/part-of: declctl
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
