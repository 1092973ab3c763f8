//! Looking into lists and maps.

use super::Imp;
use crate::meter::{Error, Meter};
use crate::number;
use crate::value::{Key, Map, Out, Val, equal};

pub const TABLE: &[(&str, Imp)] = &[
    ("index_list: _[_](list<A>, int) -> A", never),
    ("index_map: _[_](map<A, B>, A) -> B", never),
    ("optional_list_index_int: _[_](optional<list<V>>, int) -> optional<V>", never),
    ("optional_map_index_value: _[_](optional<map<K, V>>, K) -> optional<V>", never),
    ("select_optional_field: _?._(dyn, string) -> optional<V>", never),
    ("list_optindex_optional_int: _[?_](list<V>, int) -> optional<V>", never),
    ("optional_list_optindex_optional_int: _[?_](optional<list<V>>, int) -> optional<V>", never),
    ("map_optindex_optional_value: _[?_](map<K, V>, K) -> optional<V>", never),
    ("optional_map_optindex_optional_value: _[?_](optional<map<K, V>>, K) -> optional<V>", never),
    ("in_list: @in(A, list<A>) -> bool", is_in),
    ("in_map: @in(A, map<A, B>) -> bool", is_in),
    ("size_bytes: size(bytes) -> int", size),
    ("bytes_size: <bytes>.size() -> int", size),
    ("size_list: size(list<A>) -> int", size),
    ("list_size: <list<A>>.size() -> int", size),
    ("size_map: size(map<A, B>) -> int", size),
    ("map_size: <map<A, B>>.size() -> int", size),
    ("size_string: size(string) -> int", size),
    ("string_size: <string>.size() -> int", size),
    ("@mapInsert_map_key_value: cel.@mapInsert(map<K, V>, K, V) -> map<K, V>", map_insert),
    ("@mapInsert_map_map: cel.@mapInsert(map<K, V>, map<K, V>) -> map<K, V>", map_insert),
];

/// These are evaluated in place, never called.
fn never<'a>(_: &mut Meter, _: &[Val<'a>]) -> Out<'a> {
    Err(Error::no_such_overload())
}

/// Is it the value true?
pub fn is_true(value: &Val<'_>) -> bool {
    matches!(value, Val::Bool(true))
}

/// The element of `value` that `key` names; `None` when there is none, which is for the caller to tell.
pub fn index<'a>(value: &Val<'a>, key: &Val<'a>) -> Result<Option<Val<'a>>, Error> {
    match value {
        Val::Map(map) => map.find(key).transpose(),
        Val::List(list) => {
            let place = match key {
                Val::Int(i) => Some(*i),
                Val::Uint(u) => i64::try_from(*u).ok(),
                Val::Double(d) if d.fract() == 0.0 => number::to_int(*d),
                Val::Double(_) => None,
                other => {
                    let name = other.type_of();
                    return Err(Error::new(format!("unsupported index type '{}' in list", name.runtime_name())));
                }
            };
            let Some(place) = place else {
                return Err(Error::new(format!("unsupported index value {} in list", key.show())));
            };
            usize::try_from(place).ok().and_then(|i| list.get(i)).transpose()
        }
        _ => Ok(None),
    }
}

fn is_in<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    match args {
        [value, Val::List(list)] => {
            for item in list.iter() {
                meter.step(1)?;
                match item.and_then(|item| equal(&item, value, meter)) {
                    Ok(true) => return Ok(Val::Bool(true)),
                    Err(Error::Cancelled) => return Err(Error::Cancelled),
                    _ => {}
                }
            }
            Ok(Val::Bool(false))
        }
        [key, Val::Map(map)] => match map.find(key) {
            Some(Err(error)) => Err(error),
            found => Ok(Val::Bool(found.is_some())),
        },
        _ => Err(Error::no_such_overload()),
    }
}

fn size<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [value] = args else { return Err(Error::no_such_overload()) };
    if let Val::String(text) = value {
        meter.step(text.len() as u64 / 64)?;
    }
    match value {
        Val::Ip(_) | Val::Cidr(_) => Err(Error::no_overload_of("size")),
        other => match other.size() {
            Some(size) => Ok(Val::Int(i64::try_from(size).unwrap_or(i64::MAX))),
            None => Err(Error::no_overload_of("size")),
        },
    }
}

fn map_insert<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let mut args = args.to_vec();
    let target = args.first_mut().map(|a| std::mem::replace(a, Val::Null));
    insert(meter, target.unwrap_or(Val::Null), args.get(1..).unwrap_or(&[]))
}

/// `target` with an entry, or another map's entries, that it does not have yet.
pub fn insert<'a>(meter: &mut Meter, target: Val<'a>, args: &[Val<'a>]) -> Out<'a> {
    let Val::Map(map) = target else { return Err(Error::no_such_overload()) };
    let mut entries = match map {
        Map::Made(entries) => entries,
        data @ Map::Data(..) => {
            let mut entries = std::collections::BTreeMap::new();
            for key in data.keys() {
                meter.step(1)?;
                if let (Some(own), Some(value)) = (Key::of(&key), data.find(&key)) {
                    entries.insert(own, (key, value?));
                }
            }
            entries.into()
        }
    };
    let more: Vec<(Val<'a>, Val<'a>)> = match args {
        [key, value] => vec![(key.clone(), value.clone())],
        [Val::Map(other)] => {
            let mut more = Vec::new();
            for key in other.keys() {
                meter.step(1)?;
                if let Some(value) = other.find(&key) {
                    more.push((key, value?));
                }
            }
            more
        }
        _ => return Err(Error::no_such_overload()),
    };
    if std::sync::Arc::strong_count(&entries) > 1 {
        meter.allocate(entries.len() * 64)?;
    }
    let own = std::sync::Arc::make_mut(&mut entries);
    for (key, value) in more {
        meter.allocate(64)?;
        let Some(place) = Key::of(&key) else {
            return Err(Error::new("unsupported key type"));
        };
        if own.contains_key(&place) {
            return Err(Error::new(format!("insert failed: key {} already exists", key.show())));
        }
        own.insert(place, (key, value));
    }
    Ok(Val::Map(Map::Made(entries)))
}
