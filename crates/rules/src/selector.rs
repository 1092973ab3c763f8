//! Expressions that choose devices, checked when they are written.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use crate::env::Env;
use crate::estimate::estimate;
use crate::schema::{Decl, Field, Shape};
use crate::types::Type;

/// What one expression may cost at most, by estimate, for one device.
const LIMIT: u64 = 1_000_000;
/// Bytes of a driver's name or another domain, of a name within one, and of an attribute's text, at most.
const DOMAIN: u64 = 63;
const NAME: u64 = 32;
const TEXT: u64 = 64;
/// Attributes and capacities of a device, at most.
const ENTRIES: u64 = 32;

/// Why an expression may not be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// It means nothing, in upstream's words.
    Invalid(String),
    /// It could cost too much.
    TooComplex,
}

/// What `device` is: who drives it, and by the domains of their names what it is and how much it has.
static DEVICE: LazyLock<Arc<Decl>> = LazyLock::new(|| {
    let of = |shape: Shape, max_elements: u64| Arc::new(Decl { max_elements, ..Decl::plain(shape, 0) });
    let by_domain = |shape: Shape, size: u64| {
        let by_name = of(Shape::Map { values: of(shape, size), keys: NAME }, ENTRIES);
        of(Shape::Map { values: by_name, keys: DOMAIN }, ENTRIES)
    };
    let declared = [
        ("driver", of(Shape::String, DOMAIN)),
        ("allowMultipleAllocations", of(Shape::Bool, 0)),
        ("attributes", by_domain(Shape::Any, TEXT)),
        ("capacity", by_domain(Shape::Quantity, 0)),
    ];
    let names = declared.iter().map(|(name, _)| ((*name).into(), (*name).into())).collect();
    let fields: BTreeMap<Box<str>, Field> =
        declared.into_iter().map(|(name, decl)| (name.into(), Field { name: Some(name.into()), decl })).collect();
    of(Shape::Object { name: "kubernetes.DRADevice".into(), fields, names }, 0)
});

static WORLD: LazyLock<Env> = LazyLock::new(|| Env::new().with_bind().with("device", DEVICE.type_of()));

/// Checks an expression that says of a device whether it is wanted.
///
/// # Errors
/// When it means nothing, or could cost more than may be spent on one device.
pub fn check(text: &str) -> Result<(), Wrong> {
    let checked = WORLD.compile(text).map_err(|wrong| Wrong::Invalid(format!("compilation failed: {wrong}")))?;
    match checked.type_of(checked.expr.id) {
        Type::Bool | Type::Dyn => {}
        other => {
            let other = shown(other);
            return Err(Wrong::Invalid(format!("must evaluate to bool or the unknown type, not {other}")));
        }
    }
    let cost = estimate(&checked, &[("device", &DEVICE)]).max;
    if cost > LIMIT { Err(Wrong::TooComplex) } else { Ok(()) }
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
            let got = match check(text) {
                Ok(()) => String::new(),
                Err(Wrong::Invalid(why)) => why,
                Err(Wrong::TooComplex) => "too complex".to_owned(),
            };
            assert_eq!(got, want, "{text}");
        }
    }

    #[test]
    fn what_could_cost_too_much_may_not_be_written() {
        let each = |depth: usize| {
            let (mut text, mut end) = (String::new(), String::new());
            for i in 0..depth {
                text += &format!("device.attributes.all(k{i}, ");
                end += ")";
            }
            text + "true" + &end
        };
        for (text, dear) in [
            (each(3), false),
            // Thirty-two of them, in each of thirty-two, and so on.
            (each(4), true),
            // A text of a device is short, and so is what reads it.
            (r#"device.attributes["d"].model.matches("(a+)+")"#.to_owned(), false),
            (r#"device.attributes.all(d, device.attributes[d].all(n, n.matches("^[a-z]+$")))"#.to_owned(), false),
            (format!("{} == 1", vec!["1"; 500].join(" + ")), false),
            (r#"device.driver.matches("x") && device.capacity["d"].all(n, n != device.driver)"#.to_owned(), false),
        ] {
            assert_eq!(check(&text) == Err(Wrong::TooComplex), dear, "{text}: {:?}", check(&text));
        }
    }
}
