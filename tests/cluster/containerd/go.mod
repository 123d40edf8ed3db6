module rig

go 1.26.8

require github.com/containerd/containerd/v2 v2.2.0 // indirect
