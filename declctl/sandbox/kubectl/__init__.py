"""What only kubectl needs of an API server: tables, OpenAPI documents, protobuf, /scale."""
