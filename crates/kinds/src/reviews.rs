//! The questions a client can put to the API server about who may do what, and who someone is.
//! They are answered, never stored.

use api::types::authentication::v1 as authentication;
use api::types::authorization::v1 as authorization;
use machinery::field::{FieldErrors, Path};
use machinery::names;
use serde_json::Value;

use crate::check;
use crate::kind::{Columns, Ctx, Kind};
use crate::shape::{Keep, Shape};

const AUTHORIZATION: &str = "authorization.k8s.io";
const AUTHENTICATION: &str = "authentication.k8s.io";

const fn question(group: &'static str, kind: &'static str, plural: &'static str, singular: &'static str) -> Shape {
    Shape::cluster(group, "v1", kind, plural).singular(singular).keep(Keep::Virtual).verbs(&["create"])
}

/// Declares a kind without rules of its own.
macro_rules! plain_kind {
    ($(#[$doc:meta])* $kind:ident, $view:ty, $shape:expr) => {
        $(#[$doc])*
        pub struct $kind;

        impl Kind for $kind {
            type Object = $view;
            const SHAPE: Shape = $shape;
            const HAS_DEFAULTS: bool = false;

            fn name_rule(name: &str) -> Vec<String> {
                names::path_segment(name)
            }

            fn columns() -> Columns<Self::Object> {
                Columns::plain()
            }
        }
    };
}

plain_kind!(
    /// Who the client is.
    SelfSubjectReview,
    authentication::SelfSubjectReview,
    question(AUTHENTICATION, "SelfSubjectReview", "selfsubjectreviews", "selfsubjectreview")
);
plain_kind!(
    /// Whose token this is.
    TokenReview,
    authentication::TokenReview,
    question(AUTHENTICATION, "TokenReview", "tokenreviews", "tokenreview")
);
plain_kind!(
    /// What the client may do in a namespace.
    SelfSubjectRulesReview,
    authorization::SelfSubjectRulesReview,
    question(AUTHORIZATION, "SelfSubjectRulesReview", "selfsubjectrulesreviews", "selfsubjectrulesreview")
);

/// Whether someone may do something.
pub struct SubjectAccessReview;

impl Kind for SubjectAccessReview {
    type Object = authorization::SubjectAccessReview;
    const SHAPE: Shape = question(AUTHORIZATION, "SubjectAccessReview", "subjectaccessreviews", "subjectaccessreview");
    const HAS_DEFAULTS: bool = false;

    fn name_rule(name: &str) -> Vec<String> {
        names::path_segment(name)
    }

    fn validate(_ctx: &Ctx, review: &Self::Object, errors: &mut FieldErrors) {
        subject(&review.spec, errors);
        no_metadata(&review.metadata, errors);
    }

    fn columns() -> Columns<Self::Object> {
        Columns::plain()
    }
}

/// Whether someone may do something in one namespace.
pub struct LocalSubjectAccessReview;

impl Kind for LocalSubjectAccessReview {
    type Object = authorization::LocalSubjectAccessReview;
    const SHAPE: Shape =
        Shape::namespaced(AUTHORIZATION, "v1", "LocalSubjectAccessReview", "localsubjectaccessreviews")
            .singular("localsubjectaccessreview")
            .keep(Keep::Virtual)
            .verbs(&["create"]);
    const HAS_DEFAULTS: bool = false;

    fn name_rule(name: &str) -> Vec<String> {
        names::path_segment(name)
    }

    fn validate(_ctx: &Ctx, review: &Self::Object, errors: &mut FieldErrors) {
        subject(&review.spec, errors);
        let mut metadata = review.metadata.clone();
        metadata.namespace = None;
        is_empty(&metadata, "must be empty except for namespace", errors);
        let path = Path::new("spec");
        let namespace = review.spec.resource_attributes.as_ref().map(|wish| wish.namespace.clone().unwrap_or_default());
        if let Some(namespace) = namespace {
            if namespace != review.metadata.namespace.clone().unwrap_or_default() {
                let wrong = "must match metadata.namespace";
                errors.invalid(&path.child("resourceAttributes").child("namespace"), namespace, wrong);
            }
        }
        if let Some(wish) = &review.spec.non_resource_attributes {
            let wrong = "disallowed on this kind of request";
            errors.invalid(&path.child("nonResourceAttributes"), check::value(wish), wrong);
        }
    }

    fn columns() -> Columns<Self::Object> {
        Columns::plain()
    }
}

/// Whether the client may do something.
pub struct SelfSubjectAccessReview;

impl Kind for SelfSubjectAccessReview {
    type Object = authorization::SelfSubjectAccessReview;
    const SHAPE: Shape =
        question(AUTHORIZATION, "SelfSubjectAccessReview", "selfsubjectaccessreviews", "selfsubjectaccessreview");
    const HAS_DEFAULTS: bool = false;

    fn name_rule(name: &str) -> Vec<String> {
        names::path_segment(name)
    }

    fn validate(_ctx: &Ctx, review: &Self::Object, errors: &mut FieldErrors) {
        let spec = &review.spec;
        one_wish(spec.resource_attributes.as_ref(), spec.non_resource_attributes.as_ref(), errors);
        no_metadata(&review.metadata, errors);
    }

    fn columns() -> Columns<Self::Object> {
        Columns::plain()
    }
}

fn subject(spec: &authorization::SubjectAccessReviewSpec, errors: &mut FieldErrors) {
    one_wish(spec.resource_attributes.as_ref(), spec.non_resource_attributes.as_ref(), errors);
    let user = spec.user.as_deref().unwrap_or_default();
    if user.is_empty() && spec.groups.as_ref().is_none_or(Vec::is_empty) {
        errors.invalid(&Path::new("spec").child("user"), user, "at least one of user or group must be specified");
    }
}

fn one_wish(
    resource: Option<&authorization::ResourceAttributes>,
    url: Option<&authorization::NonResourceAttributes>,
    errors: &mut FieldErrors,
) {
    let path = Path::new("spec");
    match (resource, url) {
        (Some(_), Some(_)) | (None, None) => {
            let wrong = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            errors.invalid(&path, url.map_or(Value::Null, check::value), wrong);
        }
        _ => {}
    }
    let Some(resource) = resource else { return };
    let path = path.child("resourceAttributes");
    if let Some(selector) = &resource.field_selector {
        let requirements = selector.requirements.iter().flatten();
        let requirements = requirements.map(|one| (one.key.as_str(), one.operator.as_str(), one.values.as_deref()));
        narrowed(selector.raw_selector.as_deref(), requirements, false, &path.child("fieldSelector"), errors);
    }
    if let Some(selector) = &resource.label_selector {
        let requirements = selector.requirements.iter().flatten();
        let requirements = requirements.map(|one| (one.key.as_str(), one.operator.as_str(), one.values.as_deref()));
        narrowed(selector.raw_selector.as_deref(), requirements, true, &path.child("labelSelector"), errors);
    }
}

/// A selector as text or as requirements, not as both. An operator that is not known may be known to who asks.
fn narrowed<'a>(
    raw: Option<&str>,
    requirements: impl Iterator<Item = (&'a str, &'a str, Option<&'a [String]>)>,
    is_label: bool,
    path: &Path,
    errors: &mut FieldErrors,
) {
    let raw = raw.unwrap_or_default();
    let requirements: Vec<_> = requirements.collect();
    if !raw.is_empty() && !requirements.is_empty() {
        errors.invalid(&path.child("rawSelector"), raw, "may not specified at the same time as requirements");
    }
    let place = path.child("requirements");
    if raw.is_empty() && requirements.is_empty() {
        errors.required(&place, format!("when {path} is specified, requirements or rawSelector is required"));
    }
    for (i, (key, operator, values)) in requirements.into_iter().enumerate() {
        let path = place.index(i);
        if !is_label && key.is_empty() {
            errors.required(&path.child("key"), "must be specified");
        }
        let count = values.map_or(0, <[String]>::len);
        match operator {
            "In" | "NotIn" if count == 0 => {
                let wrong = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.required(&path.child("values"), wrong);
            }
            "Exists" | "DoesNotExist" if count > 0 => {
                let wrong = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.forbidden(&path.child("values"), wrong);
            }
            _ => {}
        }
        if is_label {
            check::all(names::qualified_name(key), &path.child("key"), key, errors);
        }
    }
}

fn no_metadata(metadata: &api::meta::apis::meta::v1::ObjectMeta, errors: &mut FieldErrors) {
    is_empty(metadata, "must be empty", errors);
}

fn is_empty(metadata: &api::meta::apis::meta::v1::ObjectMeta, wrong: &str, errors: &mut FieldErrors) {
    let mut metadata = metadata.clone();
    metadata.managed_fields = None;
    if metadata != Default::default() {
        errors.invalid(&Path::new("metadata"), check::value(&metadata), wrong);
    }
}
