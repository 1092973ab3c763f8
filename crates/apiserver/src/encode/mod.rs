//! How answers look: negotiation, objects, lists, Tables, errors.
