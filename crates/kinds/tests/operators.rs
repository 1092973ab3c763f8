//! An operator's bundle is accepted, compiled, and small.

mod bundle;

use jiff::Timestamp;
use kinds::custom_resource_definition::CustomResourceDefinition;
use kinds::{AnyKind, ClusterOptions, Ctx, User, Verb};
use machinery::field::FieldErrors;
use machinery::structural::Structural;
use serde_json::Value;

fn schemas(definition: &Value) -> impl Iterator<Item = Structural> {
    let versions = definition["spec"]["versions"].as_array().into_iter().flatten();
    versions.map(|version| {
        Structural::compile(&version["schema"]["openAPIV3Schema"]).unwrap_or_else(|errors| panic!("{errors}"))
    })
}

#[test]
fn definitions_are_accepted() {
    let (user, options) = (User::default(), ClusterOptions { service_cidrs: Vec::new(), node_ports: (30_000, 32_767) });
    let now: Timestamp = "2026-01-02T03:04:05Z".parse().expect("a time");
    let ctx = Ctx { user: &user, verb: Verb::Create, subresource: "", dry_run: false, now, options: &options };
    let definitions = bundle::definitions();
    assert!(definitions.len() >= 20);
    for mut definition in definitions {
        assert!(definition.to_string().len() > 25_000, "as large as real ones");
        CustomResourceDefinition.defaults(&ctx, &mut definition).expect("defaults");
        let finished = CustomResourceDefinition.finish(&ctx, &mut definition, None).expect("a definition");
        assert_eq!(finished.errors.0, []);
        assert_eq!(finished.warnings, [""; 0]);
    }
}

#[test]
fn objects_are_defaulted_and_valid() {
    for definition in bundle::definitions() {
        let mut object = bundle::object_of(&definition, "a");
        for schema in schemas(&definition) {
            assert_eq!(schema.prune_unknown(&mut object), [""; 0]);
            schema.default(&mut object).expect("small");
            assert_eq!(object["spec"]["mode"], "Active");
            assert_eq!(object["spec"]["template"]["containers"][0]["ports"][0]["protocol"], "TCP");
            let mut errors = FieldErrors::new();
            schema.validate(&object, None, &mut errors);
            schema.validate_lists(&object, None, &mut errors);
            assert_eq!(errors.0, []);
            let mut wrong = object.clone();
            wrong["spec"]["target"]["name"] = "x".into();
            wrong["spec"]["storage"]["size"] = "much".into();
            schema.validate(&wrong, Some(&object), &mut errors);
            let said: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
            assert!(said.iter().any(|text| text.contains("Found 2 valid alternatives")), "{said:?}");
            assert!(said.iter().any(|text| text.starts_with("spec.storage.size: Invalid value: \"much\"")), "{said:?}");
        }
    }
}
