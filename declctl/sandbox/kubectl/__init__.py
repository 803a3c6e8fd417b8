"""What only kubectl and Go's typed clients need of an API server: tables, and protobuf bodies."""
