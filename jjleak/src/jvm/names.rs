//! Method names in source notation.

/// The source name of a method of a class, given in class file notation. It drops the suffixes that
/// distinguish copies of the same code: the address of a hidden class, and the number of a lambda.
pub(super) fn method(class: &str, method: &str) -> String {
    format!("{}.{method}", plain_class(class))
}

/// The source name of a class, given in class file notation: arrays as `byte[]` and `java.lang.String[]`.
#[must_use]
pub fn class(name: &str) -> String {
    let element = name.trim_start_matches('[');
    let dimensions = name.len() - element.len();
    if dimensions == 0 {
        return plain_class(name);
    }
    let element = match element {
        "Z" => "boolean".to_owned(),
        "B" => "byte".to_owned(),
        "C" => "char".to_owned(),
        "S" => "short".to_owned(),
        "I" => "int".to_owned(),
        "J" => "long".to_owned(),
        "F" => "float".to_owned(),
        "D" => "double".to_owned(),
        _ => plain_class(element.strip_prefix('L').unwrap_or(element).trim_end_matches(';')),
    };
    element + &"[]".repeat(dimensions)
}

fn plain_class(class: &str) -> String {
    let class = without_address(class);
    let class = match class.split_once("$$Lambda$") {
        Some((outer, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("{outer}$$Lambda")
        }
        _ => class.to_owned(),
    };
    class.replace('/', ".")
}

/// The name of a hidden class without its address: `Name+0x00007f0123456789`, or with `/` in messages.
fn without_address(class: &str) -> &str {
    let Some(at) = class.rfind("0x") else { return class };
    let is_address = class[at + 2..].bytes().all(|byte| byte.is_ascii_hexdigit());
    let name = class[..at].strip_suffix(['+', '/', '.']);
    name.filter(|_| is_address).unwrap_or(class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_named_by_their_elements() {
        for (name, expected) in [
            ("[B", "byte[]"),
            ("[[J", "long[][]"),
            ("[Ljava/lang/String;", "java.lang.String[]"),
            ("java/util/HashMap$Node", "java.util.HashMap$Node"),
            ("[LMain$$Lambda+0x00007f1d3c000400;", "Main$$Lambda[]"),
        ] {
            assert_eq!(class(name), expected);
        }
    }

    #[test]
    fn classes_are_named_with_dots_and_without_what_distinguishes_copies() {
        for (class, expected) in [
            ("java/lang/Thread", "java.lang.Thread.run"),
            ("Leak$Inner", "Leak$Inner.run"),
            ("Main$$Lambda$14+0x00000008010031f8", "Main$$Lambda.run"),
            ("Main$$Lambda+0x00007f1d3c000400", "Main$$Lambda.run"),
            ("Churn$Tmpl/0x0000000801003000", "Churn$Tmpl.run"),
            ("java/lang/invoke/LambdaForm$MH+0x0000000800003400", "java.lang.invoke.LambdaForm$MH.run"),
            ("Odd0xName", "Odd0xName.run"),
            ("Main$$Lambda$x", "Main$$Lambda$x.run"),
        ] {
            assert_eq!(method(class, "run"), expected);
        }
    }
}
