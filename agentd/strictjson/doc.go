// Package strictjson reads JSON that a person reviewed, or that somebody signed, so that it means exactly what it says.
//
// Package encoding/json lets much pass by which a document can mean one thing to its reader and another to us. [Decode] refuses
// it: a name that is not spelt as the field is (encoding/json folds case, and some letters beyond ASCII to ones in it), a name
// that is unknown or given twice, anything after the value. [CheckText] refuses text in which encoding/json would
// put U+FFFD in place of what stands there.
package strictjson
