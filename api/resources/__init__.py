"""The resources: each declares its operations and turns a checked call into calls of the layers below."""
