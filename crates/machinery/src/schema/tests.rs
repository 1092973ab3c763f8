//! The table's form, on a small table written by hand.

use std::sync::Arc;

use super::*;

pub(crate) const SMALL: &str = "\
# a comment
package core/v1 -
alias ResourceName string
alias ResourceList map[ResourceName]resource.Quantity
alias Phase string
type Base
 hostPath 1 string oi
 emptyDir 2 Empty opi
type Empty
 medium 1 string o
type Thing atomic
 (TypeMeta) - meta/v1.TypeMeta -
 metadata 1 meta/v1.ObjectMeta oi
 (Base) 3 Base -
 limits 4 ResourceList oi
 phase 5 Phase oi gate=A,B default=\"Running\"
 ports 6 []Port o merge=port keys=port,protocol
 modes 7 []string oi merge set
type Port
 port 1 int32 -
 protocol 2 string oi
package meta/v1 meta.k8s.io
type ObjectMeta
 name 1 string oi
 labels 11 map[string]string oi
type TypeMeta
 kind 1 string oi
 apiVersion 2 string oi
";

fn small() -> Arc<Table> {
    Arc::new(Table::parse(SMALL).expect("the small table parses"))
}

#[test]
fn embedded_structs_are_flattened_in_json_and_kept_as_declared() {
    let table = small();
    let thing = table.of("", "v1", "Thing").expect("Thing");
    let names: Vec<&str> = thing.fields().map(Field::name).collect();
    let expected = ["kind", "apiVersion", "metadata", "hostPath", "emptyDir", "limits", "phase", "ports", "modes"];
    assert_eq!(names, expected);
    for (i, name) in expected.iter().enumerate() {
        assert_eq!(thing.get().position(name), Some(i), "{name}");
    }
    assert_eq!(thing.field("spec").map(Field::name), None);
    let declared: Vec<(bool, u32)> = thing.get().declared().map(|f| (f.embedded(), f.tag())).collect();
    assert_eq!(declared[..3], [(true, 0), (false, 1), (true, 3)]);
    assert!(thing.get().is_root() && thing.get().atomic());
    assert_eq!(thing.get().api_version(), "v1");
}

#[test]
fn a_field_tells_what_the_table_says() {
    let table = small();
    let thing = table.find("core/v1", "Thing").expect("Thing");
    let ports = thing.field("ports").expect("ports");
    assert_eq!((ports.merge(), ports.merge_key()), (Merge::Merge, Some("port")));
    assert_eq!(ports.list_type(), ListType::Map);
    assert_eq!(ports.list_keys().collect::<Vec<_>>(), ["port", "protocol"]);
    assert_eq!(ports.go_name(), "[]v1.Port");
    let phase = thing.field("phase").expect("phase");
    assert_eq!(phase.gates().collect::<Vec<_>>(), ["A", "B"]);
    assert_eq!(phase.default_json(), Some("\"Running\""));
    assert_eq!(phase.go_name(), "v1.Phase");
    let limits = thing.field("limits").expect("limits");
    assert_eq!(limits.go_name(), "v1.ResourceList");
    let Shape::Map(inner) = limits.shape() else { panic!("{limits:?}") };
    assert!(matches!(inner.shape(), Shape::Scalar(Scalar::Quantity)));
    assert_eq!(thing.field("modes").map(Field::list_type), Some(ListType::Set));
}

#[test]
fn a_broken_table_is_refused() {
    for broken in [
        "type X\n",
        "package a/v1 -\ntype X\n f 1 Unknown -\n",
        "package a/v1 -\ntype X\n f x string -\n",
        "package a/v1 -\ntype X\n f 1 string q\n",
        "package a/v1 -\ntype X\n f 1 string - what\n",
        "package a/v1 -\ntype X\n f 1\n",
        "package a/v1 -\nalias X X\ntype Y\n f 1 X -\n",
        "package a/v1 -\ntype X\n (X) 1 X -\n",
        "package a/v1 -\ntype X\ntype X\n",
    ] {
        assert!(Table::parse(broken).is_err(), "{broken}");
    }
}
