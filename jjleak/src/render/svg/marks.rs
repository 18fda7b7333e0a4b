//! Verdicts in the picture: what leaks has a dark red edge, and a switch colours all frames by verdict.

use std::fmt::{Error, Write};

use super::super::marks::{LEAKING, LEAKING_EDGE, MARKS};

/// Label of the switch.
pub(super) const SWITCH: &str = "Colour by verdict";

/// Class of frames with a verdict.
pub(super) fn class(mark: usize) -> String {
    format!("verdict{mark}")
}

/// Style of the frames, and the switch's script. Inferno's search sets a frame's colour as attribute, which stays visible.
pub(super) fn write(out: &mut String) -> Result<(), Error> {
    out.push_str("<style>\n");
    writeln!(out, "#frames .{} rect {{ stroke:{LEAKING_EDGE}; stroke-width:1.5px; }}", class(LEAKING))?;
    for (mark, (_, color)) in MARKS.iter().enumerate() {
        let class = class(mark);
        writeln!(
            out,
            "svg.by-verdict #frames .{class} rect:not([fill='rgb(230,0,230)']) {{ fill:{color}; }}"
        )?;
    }
    out.push_str(
        "#switch { cursor:pointer; text-decoration:underline; }\nsvg.by-verdict #kinds, svg:not(.by-verdict) #marks { display:none; }\n\
         </style><script type=\"text/ecmascript\"><![CDATA[\n\
         document.getElementById(\"switch\").addEventListener(\"click\", function() {\n\
         \x20   document.documentElement.classList.toggle(\"by-verdict\");\n\
         });\n]]></script>",
    );
    Ok(())
}
