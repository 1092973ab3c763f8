//! `/openapi/v2` and `/openapi/v3`, from the schema.
