//! Expressions with what upstream makes of them: types, estimates, results, costs, mistakes. The cases
//! were compared with upstream's own library when they were written down.

use machinery::field::Path;
use rules::crd::{self, Rules};
use rules::env::Env;
use rules::value::Val;
use rules::{Program, estimate, schema};
use serde_json::{Value as Json, json};

/// Every character that is not plain ASCII, or is a quote, escaped.
fn quote(text: &str) -> String {
    Json::String(text.to_owned()).to_string()
}

fn show(value: &Val<'_>) -> String {
    let each = |values: Vec<String>| values.join(", ");
    match value {
        Val::Null => "null".to_owned(),
        Val::Bool(b) => b.to_string(),
        Val::Int(i) => i.to_string(),
        Val::Uint(u) => format!("{u}u"),
        Val::Double(d) if d.is_finite() && d.fract() == 0.0 => format!("{d}.0"),
        Val::Double(d) => d.to_string(),
        Val::String(s) => quote(s),
        Val::Bytes(b) => format!("b{}", quote(&String::from_utf8_lossy(b))),
        Val::Duration(nanos) => format!("duration({nanos})"),
        Val::Timestamp(t) => format!("timestamp({})", t.rfc3339()),
        Val::Type(t) => format!("type({})", t.runtime_name()),
        Val::List(list) => {
            let items = list.iter().map(|v| v.map_or_else(|e| format!("({e})"), |v| show(&v)));
            format!("[{}]", each(items.collect()))
        }
        Val::Map(map) => {
            let entry = |key: &Val<'_>| {
                let value = map.find(key).map(|v| v.map_or_else(|e| format!("({e})"), |v| show(&v)));
                format!("{}: {}", show(key), value.unwrap_or_default())
            };
            let mut entries: Vec<String> = map.keys().iter().map(entry).collect();
            entries.sort();
            format!("{{{}}}", each(entries))
        }
        Val::Optional(None) => "optional.none()".to_owned(),
        Val::Optional(Some(inner)) => format!("optional.of({})", show(inner)),
        Val::Url(url) => format!("url({url})"),
        Val::Ip(ip) => format!("ip({ip})"),
        Val::Cidr(cidr) => format!("cidr({cidr})"),
        Val::Quantity(quantity) => format!("quantity({quantity})"),
        Val::Semver(version) => format!("semver({})", version.text),
        Val::Format(format) => format!("format({})", format.name),
        Val::Unknown(_) => "unknown".to_owned(),
    }
}

/// All that is known of an expression, as the table has it.
fn outcome(world: &Json, text: &str) -> Json {
    let decl = schema::declare(&world["schema"], false);
    let env = Env::new().with("self", decl.type_of()).with("oldSelf", decl.type_of());
    let checked = match env.compile(text) {
        Ok(checked) => checked,
        Err(mistakes) => return json!({"expr": text, "compile": mistakes}),
    };
    let range = estimate(&checked, &[("self", &decl), ("oldSelf", &decl)]);
    let mut out = json!({
        "expr": text,
        "type": checked.type_of(checked.expr.id).to_string(),
        "estimate": [range.min, range.max],
    });
    let program = match Program::new(&checked, vec!["self".to_owned(), "oldSelf".to_owned()]) {
        Ok(program) => program,
        Err(error) => {
            out["program"] = json!(error.to_string());
            return out;
        }
    };
    let variables = [decl.read(&world["self"]).ok(), decl.read(&world["oldSelf"]).ok()];
    let run = program.run(&variables, crd::CALL_LIMIT);
    out["cost"] = json!(run.cost);
    match run.value {
        Ok(value) => out["value"] = json!(show(&value)),
        Err(error) => out["error"] = json!(error.to_string()),
    }
    out
}

fn file(name: &str) -> String {
    let path = format!("{}/tests/testdata/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn lines(name: &str) -> Vec<Json> {
    file(name).lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

/// Compares each line with what is made of it; with `UPDATE_EXPECT=1` writes them anew.
#[track_caller]
fn check(name: &str, run: impl Fn(&Json) -> Json) {
    let cases = lines(name);
    let found: Vec<Json> = cases.iter().map(run).collect();
    #[allow(clippy::disallowed_methods, reason = "tests rewrite their fixtures when they are asked to")]
    if std::env::var("UPDATE_EXPECT").is_ok() {
        let text: String = found.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(format!("{}/tests/testdata/{name}", env!("CARGO_MANIFEST_DIR")), text).expect("writes");
        return;
    }
    let wrong: Vec<String> = cases
        .iter()
        .zip(&found)
        .filter(|(case, found)| case != found)
        .map(|(case, found)| format!("expected {case}\n   found {found}"))
        .collect();
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn expressions_are_as_upstream_has_them() {
    let world: Json = serde_json::from_str(&file("world.json")).expect("the world");
    check("expressions.jsonl", |case| outcome(&world, case["expr"].as_str().unwrap_or_default()));
}

#[test]
fn objects_are_judged_as_upstream_judges_them() {
    check("objects.jsonl", |case| {
        let mut out = case.clone();
        let rules = Rules::compile(&case["schema"]);
        let old = case.get("old");
        let mut budget = crd::BUDGET;
        let mut warnings = Vec::new();
        let errors = rules.validate(&case["self"], old, &Path::root(), &mut budget, &mut warnings);
        out["errors"] = errors.0.iter().map(|e| json!(e.to_string())).collect();
        out["warnings"] = json!(warnings);
        out["spent"] = json!(if budget < 0 { -1 } else { crd::BUDGET - budget });
        out
    });
}

#[test]
fn definitions_are_judged_as_upstream_judges_them() {
    check("definitions.jsonl", |case| {
        let mut out = case.clone();
        let errors = crd::check(&case["schema"], &Path::new("openAPIV3Schema"), false);
        out["errors"] = errors.0.iter().map(|e| json!(format!("{}: {}", e.path, e.detail))).collect();
        out
    });
}
