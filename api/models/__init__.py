"""The shapes of requests and answers; requests are validated by them and the OpenAPI document is made from them."""
