//! Expressions that choose devices, checked when they are written.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use crate::env::Env;
use crate::schema::{Decl, Field, Shape};
use crate::types::Type;

/// What `device` is: who drives it, and by the domains of their names what it is and how much it has.
static WORLD: LazyLock<Env> = LazyLock::new(|| {
    let plain = |shape: Shape| Arc::new(Decl::plain(shape, 0));
    let by_domain = |shape: Shape| {
        let by_name = plain(Shape::Map { values: plain(shape) });
        plain(Shape::Map { values: by_name })
    };
    let declared = [
        ("driver", plain(Shape::String)),
        ("allowMultipleAllocations", plain(Shape::Bool)),
        ("attributes", by_domain(Shape::Any)),
        ("capacity", by_domain(Shape::Quantity)),
    ];
    let names = declared.iter().map(|(name, _)| ((*name).into(), (*name).into())).collect();
    let fields: BTreeMap<Box<str>, Field> =
        declared.into_iter().map(|(name, decl)| (name.into(), Field { name: Some(name.into()), decl })).collect();
    let device = plain(Shape::Object { name: "kubernetes.DRADevice".into(), fields, names });
    Env::new().with_bind().with("device", device.type_of())
});

/// Checks an expression that says of a device whether it is wanted.
///
/// # Errors
/// What is wrong with it, as one text in upstream's words.
pub fn check(text: &str) -> Result<(), String> {
    let checked = WORLD.compile(text).map_err(|wrong| format!("compilation failed: {wrong}"))?;
    match checked.type_of(checked.expr.id) {
        Type::Bool | Type::Dyn => Ok(()),
        other => Err(format!("must evaluate to bool or the unknown type, not {}", shown(other))),
    }
}

/// A type as upstream writes it; of the values of attributes it knows only that they are something.
fn shown(t: &Type) -> String {
    let within = |t: &Type| if *t == Type::Dyn { "google.protobuf.Any".to_owned() } else { shown(t) };
    match t {
        Type::List(items) => format!("list({})", shown(items)),
        Type::Map(entry) => format!("map({}, {})", shown(&entry.0), within(&entry.1)),
        Type::Optional(inner) => format!("optional_type({})", shown(inner)),
        other => other.runtime_name().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_chooses_devices_is_checked() {
        for (text, want) in [
            ("true", ""),
            (r#"device.driver == "d.example.com" && !device.allowMultipleAllocations"#, ""),
            (r#"device.attributes["d.example.com"].model == "a" && device.attributes["d.example.com"].cores > 4"#, ""),
            (r#""model" in device.attributes["d.example.com"]"#, ""),
            (r#"device.attributes["d.example.com"].healthy"#, ""),
            (r#"device.attributes["d.example.com"].version.isGreaterThan(semver("0.0.1"))"#, ""),
            (r#"device.capacity["d.example.com"].memory.compareTo(quantity("10Gi")) >= 0"#, ""),
            (r#"cel.bind(d, device.attributes["d.example.com"], d.a && d.b)"#, ""),
            (r#"device.attributes["d.example.com"].model.lowerAscii().matches("^a")"#, ""),
            ("1", "must evaluate to bool or the unknown type, not int"),
            (
                "device.attributes",
                "must evaluate to bool or the unknown type, not map(string, map(string, google.protobuf.Any))",
            ),
            (
                r#"device.capacity["d"]"#,
                "must evaluate to bool or the unknown type, not map(string, kubernetes.Quantity)",
            ),
            (
                "device.atributes.size() > 0",
                "compilation failed: ERROR: <input>:1:7: undefined field 'atributes'\n | device.atributes.size() > 0\n | ......^",
            ),
            (
                r#"device.capacity["d"].m > 5"#,
                "compilation failed: ERROR: <input>:1:24: found no matching overload for '_>_' applied to '(kubernetes.Quantity, int)'\n | device.capacity[\"d\"].m > 5\n | .......................^",
            ),
            (
                r#"device.attributes["d"].a.includes("fish")"#,
                "compilation failed: ERROR: <input>:1:34: undeclared reference to 'includes' (in container '')\n | device.attributes[\"d\"].a.includes(\"fish\")\n | .................................^",
            ),
            (
                "object.x",
                "compilation failed: ERROR: <input>:1:1: undeclared reference to 'object' (in container '')\n | object.x\n | ^",
            ),
        ] {
            assert_eq!(check(text).err().unwrap_or_default(), want, "{text}");
        }
    }
}
