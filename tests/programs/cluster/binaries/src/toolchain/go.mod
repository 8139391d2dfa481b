// The Go that builds the programs, as a module: any older Go can download it, checked
// against go.sum.
module mizar.share/tests/cluster/toolchain

go 1.19
