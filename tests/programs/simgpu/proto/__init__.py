"""gRPC stubs that hack/gen_protos.sh writes from the .proto files."""
