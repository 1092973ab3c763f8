//! What of a page is led here, and what stays as it is, wherever the page is cut.

use proptest::prelude::*;

use super::*;

fn lead(link: &str) -> Option<String> {
    link.starts_with('/').then(|| format!("/p{link}"))
}

fn led(pieces: &[&[u8]]) -> Vec<u8> {
    let (mut page, mut out) = (Page::new(lead), Vec::new());
    for piece in pieces {
        page.take(piece, &mut out);
    }
    page.finish(&mut out);
    out
}

fn check(page: &str, want: &str) {
    assert_eq!(String::from_utf8_lossy(&led(&[page.as_bytes()])), want);
    let bytes: Vec<&[u8]> = page.as_bytes().chunks(1).collect();
    assert_eq!(String::from_utf8_lossy(&led(&bytes)), want, "a byte at a time");
}

#[test]
fn links_are_led_here() {
    for (page, want) in [
        (r#"<a href="/x">y</a>"#, r#"<a href="/p/x">y</a>"#),
        ("<A\nclass=b HREF = '/x' id=c>", "<A\nclass=b HREF = '/p/x' id=c>"),
        ("<a href=/x/>", "<a href=/p/x/>"),
        ("<a href=/x id=/y>", "<a href=/p/x id=/y>"),
        ("<a href=\" /x\">", "<a href=\"/p/x\">"),
        ("<img/src='/a.png'/longdesc=/b alt='/c'>", "<img/src='/p/a.png'/longdesc=/p/b alt='/c'>"),
        ("<form action=\"/f?a=1&amp;b=2\">", "<form action=\"/p/f?a=1&amp;b=2\">"),
        ("<script src=/s.js></script><link href=/c.css>", "<script src=/p/s.js></script><link href=/p/c.css>"),
        ("<video src=/v poster=/w>", "<video src=/p/v poster=/p/w>"),
        ("<base href='/'>", "<base href='/p/'>"),
    ] {
        check(page, want);
    }
}

#[test]
fn all_else_stays() {
    for page in [
        "",
        "a < b <3 <",
        "<",
        "<!",
        "<!-",
        "<a href=\"/x",
        "<a href=x><a href='http://other/x'><a href=''><a href><a href=>",
        "<a data-href=/x><p href=/x><abbr href=/x>",
        "<!-- <a href=/x> --> <!--><!---><!DOCTYPE html><?x <a href=/x?>",
        "</a href=/x>",
        "<script>'<a href=\"/x\">'; a </scr < b </scriptx></script >",
        "<STYLE></styl</STYLE><title><a href=/x></title>",
        "<a \"href=/x\" \"'>",
    ] {
        check(page, page);
    }
    // After what is no tag, one is again.
    check("<!-- - -- --><a href=/x>", "<!-- - -- --><a href=/p/x>");
    check("<script><a href=/x></SCRIPT\n><a href=/x>", "<script><a href=/x></SCRIPT\n><a href=/p/x>");
    check("a <> <3<a href=/x>", "a <> <3<a href=/p/x>");
}

#[test]
fn no_encoding_in_which_ascii_is_ascii_is_hurt() {
    // Latin 1, and two bytes of Shift JIS of which the second is a letter's.
    let page = b"<a title=\"\xe9\x83\x5c\" href=\"/\xe9\">\xff<a href=/x>";
    assert_eq!(led(&[page]), b"<a title=\"\xe9\x83\x5c\" href=\"/\xe9\">\xff<a href=/p/x>");
}

#[test]
fn what_is_put_in_ends_no_value() {
    let mut out = Vec::new();
    let mut page = Page::new(|_: &str| Some("/\"'<>&amp;".to_owned()));
    page.take(b"<a href=/x>", &mut out);
    assert_eq!(String::from_utf8_lossy(&out), "<a href=/&#34;&#39;&lt;&gt;&amp;>");
}

#[test]
fn a_tag_that_is_too_long_passes_unchanged_and_is_not_held() {
    let (mut page, mut out) = (Page::new(lead), Vec::new());
    let begin = b"<img src='/x' alt='".to_vec();
    page.take(&begin, &mut out);
    assert!(out.is_empty());
    let piece = vec![b'>'; LONGEST];
    for _ in 0..3 {
        page.take(&piece, &mut out);
    }
    assert_eq!(out.len(), begin.len() + 3 * piece.len());
    page.take(b"'><a href=/x>", &mut out);
    assert!(out.ends_with(b">'><a href=/p/x>"));
    assert!(out.starts_with(&begin));
}

proptest! {
    #[test]
    fn where_it_is_cut_changes_nothing(
        parts in proptest::collection::vec(
            prop_oneof![
                Just("<a href="), Just("/x"), Just("\""), Just("'"), Just(">"), Just(" "), Just("<script"), Just("</script"),
                Just("<!--"), Just("-->"), Just("src=/y"), Just("<img "), Just("<"), Just("/"), Just("="), Just("é"), Just("-"),
            ],
            0..40,
        ),
        cut in 1usize..7,
    ) {
        let page = parts.concat();
        let whole = led(&[page.as_bytes()]);
        let pieces: Vec<&[u8]> = page.as_bytes().chunks(cut).collect();
        prop_assert_eq!(&led(&pieces), &whole);
        // What is led nowhere passes as it is.
        let (mut same, mut out) = (Page::new(|_: &str| None), Vec::new());
        same.take(page.as_bytes(), &mut out);
        same.finish(&mut out);
        prop_assert_eq!(out, page.as_bytes());
    }
}
