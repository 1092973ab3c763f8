//! The readers of whatever comes from outside, driven by bytes by chance and by honest input that was
//! damaged: what `./dev fuzz` does for as long as one likes, here for a moment and on every machine.

use proptest::prelude::*;

#[path = "../../../fuzz/src/lib.rs"]
mod entries;

/// Honest input, to be damaged.
const HONEST: &[&str] = &[
    r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","labels":{"k":"v"}},"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":"1500m","memory":"1e3Ki"}},"livenessProbe":{"httpGet":{"port":"http"}}}],"tolerations":[{"tolerationSeconds":3}]},"status":{"startTime":"2026-01-02T03:04:05Z"}}"#,
    r#"{"kind":"Deployment","apiVersion":"apps/v1","spec":{"replicas":1,"replicas":2,"strategy":{"rollingUpdate":{"maxSurge":"25%"}},"selector":null,"foo":[1,2.5e3,true]}}"#,
    r#"{"data":{"a":"AAE=","b":null},"stringData":{"x":"\u00e4\ud83d\ude00"},"type":"Opaque"}"#,
    "kind: Pod\napiVersion: v1\nmetadata: {name: a, annotations: {on: off, 0x10: 1_000}}\nspec:\n  containers:\n  - &c {name: c}\n  - *c\n",
    r#"[{"op":"replace","path":"/spec/replicas","value":5},{"op":"test","path":"/metadata/labels/a","value":"b"},{"op":"move","from":"/spec/template","path":"/spec/x~1y"}]"#,
    r#"{"spec":{"replicas":null,"template":{"spec":{"$setElementOrder/containers":[{"name":"b"},{"name":"a"}],"containers":[{"name":"a","$patch":"delete"},{"name":"b","env":[{"$patch":"replace"}]}],"$retainKeys":["containers"]}}}}"#,
    "a=b,c!=d,e in (f,g),h notin (i),!j,k",
    "metadata.name=a\\,b,spec.nodeName!=n",
    "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6Nywic3RhcnQiOiJkZWZhdWx0L2FcdTAwMDAifQ",
    "-1.5e-3Ki",
    r#"{"type":"object","required":["a"],"properties":{"a":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["b"],"items":{"type":"object","properties":{"b":{"type":"string","pattern":"^(a|b)+$","default":"c","format":"ipv4"}},"x-kubernetes-validations":[{"rule":"self.b != 'x'","messageExpression":"'no ' + self.b"}]}},"c":{"x-kubernetes-preserve-unknown-fields":true},"d":{"anyOf":[{"type":"integer"},{"type":"string"}],"x-kubernetes-int-or-string":true,"maximum":5}}}
{"a":[{"b":"x"},{}],"c":{"e":[1]},"d":7}"#,
    "self.l.all(x, x > 0 && self.m['a'].matches('^b{1,9}$')) && self.s.split('').size() < 9 ? has(self.d) : optional.of(self.n).orValue(1) == 2",
    "VERSION=1 c eth0 /run/netns/a K8S_POD_NAME=p;K8S_POD_NAMESPACE=n\n{\"cniVersion\":\"1.0.0\",\"name\":\"pintle\",\"dataDir\":\"/s\",\"ranges\":[\"10.244.0.0/24\",\"fd00::/64\"],\"runtimeConfig\":{\"portMappings\":[{\"HostPort\":80,\"ContainerPort\":8080,\"Protocol\":\"TCP\",\"HostIP\":\"::\"}],\"bandwidth\":{\"ingressRate\":1}},\"prevResult\":{}}",
    "/apis/apps/v1/namespaces/default/deployments/web/scale?dryRun=All&fieldValidation=Strict&limit=5&labelSelector=a%3Db&timeoutSeconds=3",
];

/// Something that damages input.
#[derive(Clone, Debug)]
enum Damage {
    Flip(usize, u8),
    Cut(usize),
    Repeat(usize, usize, usize),
    Insert(usize, Vec<u8>),
}

fn damage() -> impl Strategy<Value = Damage> {
    let word = prop_oneof![
        Just(b"\"".to_vec()),
        Just(b"{".to_vec()),
        Just(b"[".to_vec()),
        Just(b"null".to_vec()),
        Just(b"99999999999999999999".to_vec()),
        Just(b"\\ud800".to_vec()),
        Just(b"&a *a".to_vec()),
        Just(b"\xff\x00".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..8),
    ];
    prop_oneof![
        (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Damage::Flip(at, byte)),
        any::<usize>().prop_map(Damage::Cut),
        (any::<usize>(), 1..20usize, 2..40usize).prop_map(|(at, length, times)| Damage::Repeat(at, length, times)),
        (any::<usize>(), word).prop_map(|(at, word)| Damage::Insert(at, word)),
    ]
}

fn damaged(mut bytes: Vec<u8>, damages: &[Damage]) -> Vec<u8> {
    for damage in damages {
        let places = bytes.len() + 1;
        let place = |at: usize| at % places;
        match damage {
            Damage::Flip(at, byte) => {
                let at = place(*at);
                if let Some(b) = bytes.get_mut(at) {
                    *b ^= byte;
                }
            }
            Damage::Cut(at) => bytes.truncate(place(*at)),
            Damage::Repeat(at, length, times) => {
                let at = place(*at);
                let piece = bytes[at..(at + length).min(bytes.len())].repeat(*times);
                bytes.splice(at..at, piece);
            }
            Damage::Insert(at, word) => {
                let at = place(*at);
                bytes.splice(at..at, word.iter().copied());
            }
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_reader_answers_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        for (_, entry) in entries::ALL {
            entry(&bytes);
        }
    }

    #[test]
    fn every_reader_answers_damaged_input(
        choice in any::<u8>(),
        honest in proptest::sample::select(HONEST),
        damages in proptest::collection::vec(damage(), 0..5),
    ) {
        let text = damaged(honest.as_bytes().to_vec(), &damages);
        // The first byte chooses the type, where there is a choice.
        let chosen = [&[choice], text.as_slice()].concat();
        for (_, entry) in entries::ALL {
            entry(&text);
            entry(&chosen);
        }
    }
}
