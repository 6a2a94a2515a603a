"""The protocol, version 1. The modules here are generated from service.proto; its first lines say how."""
