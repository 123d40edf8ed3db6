module otelgpu.test/grafana

go 1.25.8

require github.com/grafana/grafana-foundation-sdk/go v0.0.22
