{{- /*
Each template begins with it: what .Values lacks is what values.yaml has. A release whose values are older than the
chart lacks what came later (helm upgrade --reuse-values brings the old chart's defaults and not the new ones).

A map that the schema passes on whole stays away: there null is how a user removes a default, as [] is of a list.
*/ -}}
{{- define "otelgpu.defaults" -}}
{{- $defaults := .Files.Get "defaults.yaml" | fromYaml }}
{{- $schema := .Files.Get "schema.json" | fromJson }}
{{- include "otelgpu.defaults.of" (dict "values" .Values "defaults" $defaults "schema" $schema) }}
{{- end }}

{{- /* Of one group: .values, which it changes, .defaults and .schema */ -}}
{{- define "otelgpu.defaults.of" -}}
{{- range $name, $default := .defaults }}
{{- $schema := get $.schema.properties $name }}
{{- $group := hasKey $schema "properties" }}
{{- if kindIs "invalid" (index $.values $name) }}
{{- if or $group (not (kindIs "map" $default)) }}{{ $_ := set $.values $name (deepCopy $default) }}{{ end }}
{{- else if $group }}
{{- include "otelgpu.defaults.of" (dict "values" (index $.values $name) "defaults" $default "schema" $schema) }}
{{- end }}
{{- end }}
{{- end }}
