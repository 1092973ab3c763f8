//! TokenReview and the SubjectAccessReview family: questions that are answered, not stored.
