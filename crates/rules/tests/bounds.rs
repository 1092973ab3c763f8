//! Hostile expressions end, early, and on a small stack.

use rules::env::Env;
use rules::types::Type;
use rules::value::Val;
use rules::{Error, Program};

/// The stack of a thread that serves requests. Without optimization what is on it is several times larger.
const STACK: usize = if cfg!(debug_assertions) { 32 << 20 } else { 2 << 20 };

/// What an expression gives, on such a thread.
fn run(text: String) -> Result<Result<String, Error>, String> {
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(move || {
        let checked = Env::new().with("s", Type::String).with_bind().compile(&text)?;
        let program = Program::new(&checked, vec!["s".to_owned()]).map_err(|e| e.to_string())?;
        let variables = [Some(Val::text("x".repeat(100_000)))];
        let outcome = program.run(&variables, 1_000_000);
        Ok(outcome.value.map(|v| v.show()))
    });
    thread.expect("starts").join().expect("does not overflow its stack")
}

#[test]
fn depth_is_bounded() {
    for (text, mistake) in [
        ("(".repeat(300) + "1" + &")".repeat(300), "expression recursion limit exceeded: 250"),
        ("1".to_owned() + &" + 1".repeat(300), "max recursion depth exceeded"),
        ("s".to_owned() + &".s".repeat(300), "max recursion depth exceeded"),
        ("[".repeat(300) + &"]".repeat(300), "expression recursion limit exceeded: 250"),
        ("1 + ".repeat(60_000) + "1", "expression code point size exceeds limit: size: 240001, limit 100000"),
    ] {
        let found = run(text).expect_err("is refused");
        assert_eq!(found, format!("ERROR: <input>:-1:0: {mistake}"));
    }
    assert!(run("+-".repeat(40_000)).is_err());
    assert!(run("!-a".to_owned()).is_err());
    let deep = "(".repeat(240) + "1" + &")".repeat(240);
    assert_eq!(run(deep), Ok(Ok("1".to_owned())));
    assert_eq!(run("!".repeat(50_001) + "true"), Ok(Ok("false".to_owned())));
    assert_eq!(run("true".to_owned() + &" && true".repeat(10_000)), Ok(Ok("true".to_owned())));
    let lists = "[".repeat(240) + "1" + &"]".repeat(240) + &"[0]".repeat(240);
    assert_eq!(run(lists), Ok(Ok("1".to_owned())));
    let calls = "dyn(".repeat(240) + "s" + &")".repeat(240) + ".size()";
    assert_eq!(run(calls), Ok(Ok("100000".to_owned())));
    let folds: String = (0..100).map(|i| format!("[1].all(x{i}, ")).collect::<String>() + "true" + &")".repeat(100);
    assert_eq!(run(folds), Ok(Ok("true".to_owned())));
    let branches = "(false ? 1 : ".repeat(100) + "2" + &")".repeat(100);
    assert_eq!(run(branches), Ok(Ok("2".to_owned())));
}

/// Each of these would run for hours, or fill the memory, if nothing stopped it.
#[test]
fn nothing_runs_without_end() {
    let range = "lists.range(3000)";
    for text in [
        format!("{range}.all(a, {range}.all(b, {range}.all(c, a + b + c >= 0)))"),
        format!("{range}.map(a, {range}.map(b, {range})).size() > 0"),
        "lists.range(1000000).map(a, lists.range(1000000)).size() > 0".to_owned(),
        format!("{range}.all(i, s.replace('', s).size() > 0)"),
        format!("{range}.map(i, '%s'.format([{range}])).size() > 0"),
        format!("{range}.all(i, !s.matches('a' + string(i) + '{{1,900}}'))"),
        format!("{range}.all(i, s.split('').size() > 0)"),
        "cel.bind(a, [s, s], cel.bind(b, a + a + a + a, cel.bind(c, b + b + b + b, cel.bind(d, c + c + c + c, \
         cel.bind(e, d + d + d + d, cel.bind(f, e + e + e + e, cel.bind(g, f + f + f + f, cel.bind(h, g + g + g + g, \
         cel.bind(i, h + h + h + h, cel.bind(j, i + i + i + i, j == j + []))))))))))"
            .to_owned(),
        format!("{range}.map(i, s).join('').size() > 0"),
    ] {
        assert_eq!(run(text.clone()), Ok(Err(Error::Cancelled)), "{text}");
    }
}

#[test]
fn types_and_macros_do_not_grow_without_end() {
    let maps = "optional.of(1)".to_owned() + &".optMap(a, {a: a})".repeat(40);
    assert!(run(maps).is_err());
    let binds: String = (0..60).map(|i| format!("cel.bind(v{}, {{1: v{i}, 2: v{i}}}, ", i + 1)).collect();
    let text = "cel.bind(v0, {1: 1}, ".to_owned() + &binds + "true" + &")".repeat(61);
    assert_eq!(run(text), Ok(Ok("true".to_owned())));
    let keys: String =
        (0..60).map(|i| format!("[v{i}].transformMap(k, v{}, {{v{}: v{}}}).map(z{i}, ", i + 1, i + 1, i + 1)).collect();
    let text = "cel.bind(v0, 1, ".to_owned() + &keys + "true" + &")".repeat(61);
    let _ = run(text);
}
