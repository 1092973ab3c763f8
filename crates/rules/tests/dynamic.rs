//! Values of which nothing is declared: what policies and selectors see.

use rules::Program;
use rules::env::Env;
use rules::schema::Decl;
use rules::types::Type;
use serde_json::json;

fn run(text: &str) -> Result<String, String> {
    let object = json!({"spec": {"replicas": 3, "name": "web", "ports": [80, 443], "ratio": 0.5}, "labels": {"a": "b"}, "none": null});
    let checked = Env::new().with("object", Type::Dyn).with("oldObject", Type::Dyn).with_bind().compile(text)?;
    let program =
        Program::new(&checked, vec!["object".to_owned(), "oldObject".to_owned()]).map_err(|e| e.to_string())?;
    let variables = [Decl::any().read(&object).ok(), None];
    program.run(&variables, 1_000_000).value.map(|v| v.show()).map_err(|e| e.to_string())
}

#[test]
fn values_are_what_they_turn_out_to_be() {
    for (text, found) in [
        ("object.spec.replicas > 2", "true"),
        ("object.spec.replicas == 3.0", "true"),
        ("object.spec.ratio * 2.0", "1"),
        ("object.spec.ports.exists(p, p == 443)", "true"),
        ("object.spec.ports.map(p, p + 1)[1]", "444"),
        ("object.labels.all(k, k in object.labels)", "true"),
        ("has(object.spec.nothing)", "false"),
        ("object.none == null", "true"),
        ("object.?spec.?nothing.orValue('x')", "x"),
        ("object.spec == {'replicas': 3}", "false"),
        ("object.labels == {'a': 'b'}", "true"),
        ("object.labels == 1", "false"),
        ("cel.bind(s, object.spec, s.name + s.name)", "webweb"),
        ("object.spec.name.startsWith('w') ? 'yes' : 'no'", "yes"),
    ] {
        assert_eq!(run(text), Ok(found.to_owned()), "{text}");
    }
    for (text, mistake) in [
        ("object.spec.nothing", "no such key: nothing"),
        ("object.spec.replicas + 'a'", "no such overload"),
        ("object.spec.ports[2]", "index out of bounds: 2"),
        ("oldObject.spec", "no such attribute(s): oldObject"),
        ("object.spec.name.sum()", "no such overload: sum(string)"),
    ] {
        assert_eq!(run(text), Err(mistake.to_owned()), "{text}");
    }
}
