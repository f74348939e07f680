/* `calla bench --plot`: CSV files, ours or a peer's, as one SVG with two charts, prefill and decode
 * speed against the context. A line is what has the same engine, version, backend, machine,
 * threads, model and rows; its name says where lines differ, the title what they share. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file_map.h"
#include "base/file_write.h"
#include "base/utf8.h"
#include "cli/bench.h"

#define MAX_LINES 8 /* as many colours and marks there are */
#define MAX_POINTS 1024
#define MAX_FIELDS 64 /* of a CSV record */
#define LEAST 1e-9    /* above 0: steps of an axis must be numbers, too */

/* Columns that tell lines apart. */
static const char *const key_names[] = {"engine",  "version", "backend", "cpu",
                                        "threads", "model",   "rows"};
enum { KEY_ENGINE, KEY_VERSION, KEY_BACKEND, KEY_CPU, KEY_THREADS, KEY_MODEL, KEY_ROWS, N_KEYS };
#define KEY_SIZE 96

struct line {
    char keys[N_KEYS][KEY_SIZE];
};

struct point {
    int line;
    double context;
    double value[2], min[2], max[2]; /* prefill, decode; 0: not measured */
};

struct plot {
    struct line lines[MAX_LINES];
    int n_lines;
    struct point points[MAX_POINTS];
    int n_points;
    struct bytes out;
};

/* ---- reading --------------------------------------------------------------------------------- */

struct csv {
    const char *path;
    const char *data, *end;
    int line, record;          /* lines of the file: the next one, and where the record begins */
    struct bytes text;         /* the fields of a record, each with a NUL */
    size_t starts[MAX_FIELDS]; /* in text */
    int n;
};

/* The next record: STATUS_OK with n = 0 at the end. Quoted fields may hold commas, line ends and
 * doubled quotes. */
static enum status csv_next(struct csv *csv, struct error *error)
{
    bytes_reset(&csv->text);
    csv->n = 0;
    while (csv->data < csv->end && (*csv->data == '\n' || *csv->data == '\r')) {
        csv->line += *csv->data == '\n'; /* empty lines */
        csv->data++;
    }
    csv->record = csv->line;
    bool more = csv->data < csv->end;
    while (more) {
        if (csv->n == MAX_FIELDS)
            return error_set(error, STATUS_INVALID, "%s: line %d: found more than %d fields",
                             csv->path, csv->line, MAX_FIELDS);
        csv->starts[csv->n++] = csv->text.length;
        bool quoted = *csv->data == '"';
        const char *at = csv->data + quoted;
        for (; at < csv->end; at++) {
            if (quoted && *at == '"') {
                if (at + 1 == csv->end || at[1] != '"')
                    break;
                at++;
            } else if (!quoted && (*at == ',' || *at == '\n')) {
                break;
            }
            csv->line += *at == '\n';
            if (*at && (quoted || *at != '\r'))
                bytes_append_byte(&csv->text, *at);
        }
        if (quoted && at == csv->end)
            return error_set(error, STATUS_INVALID, "%s: line %d: found no end of a quoted field",
                             csv->path, csv->line);
        at += quoted;
        while (quoted && at < csv->end && *at == '\r')
            at++;
        if (quoted && at < csv->end && *at != ',' && *at != '\n')
            return error_set(error, STATUS_INVALID,
                             "%s: line %d: found text after a quoted field, wanted a comma",
                             csv->path, csv->line);
        bytes_append_byte(&csv->text, '\0');
        more = at < csv->end && *at == ',';
        csv->line += at < csv->end && *at == '\n';
        csv->data = at < csv->end ? at + 1 : at;
        if (more && csv->data == csv->end) { /* the last field is empty */
            more = false;
            if (csv->n < MAX_FIELDS) {
                csv->starts[csv->n++] = csv->text.length;
                bytes_append_byte(&csv->text, '\0');
            }
        }
    }
    return csv->text.failed ? error_no_memory(error, csv->path) : STATUS_OK;
}

static const char *csv_field(const struct csv *csv, int column)
{
    return column >= 0 && column < csv->n ? csv->text.data + csv->starts[column] : "";
}

static int csv_column(const struct csv *csv, const char *name)
{
    for (int i = 0; i < csv->n; i++)
        if (strcmp(csv_field(csv, i), name) == 0)
            return i;
    return -1;
}

/* An empty field is 0. */
static enum status csv_number(const struct csv *csv, int column, const char *name, double *value,
                              struct error *error)
{
    const char *text = csv_field(csv, column);
    char *end;
    *value = *text ? strtod(text, &end) : 0;
    if (*text && (*end || !(*value == 0 || (*value >= LEAST && *value < 1e15))))
        return error_set(error, STATUS_INVALID,
                         "%s: line %d: %s: found '%s', wanted 0 or a number from %g to 1e15",
                         csv->path, csv->record, name, text, LEAST);
    return STATUS_OK;
}

static enum status find_line(struct plot *plot, const struct line *line, int *index,
                             struct error *error)
{
    for (int i = 0; i < plot->n_lines; i++) {
        bool same = true;
        for (int key = 0; key < N_KEYS; key++)
            same &= strcmp(plot->lines[i].keys[key], line->keys[key]) == 0;
        *index = i;
        if (same)
            return STATUS_OK;
    }
    if (plot->n_lines == MAX_LINES)
        return error_set(error, STATUS_UNSUPPORTED,
                         "found more than %d lines to draw (engines, machines, rows …)", MAX_LINES);
    *index = plot->n_lines;
    plot->lines[plot->n_lines++] = *line;
    return STATUS_OK;
}

struct columns {
    int keys[N_KEYS], context, values[2][3];
};
static const char *const value_names[2][3] = {
    {"prefill_tok_per_s", "prefill_min_tok_per_s", "prefill_max_tok_per_s"},
    {"decode_tok_per_s", "decode_min_tok_per_s", "decode_max_tok_per_s"}};

static enum status read_point(struct plot *plot, const struct csv *csv,
                              const struct columns *columns, struct error *error)
{
    struct line line;
    struct point point = {0};
    for (int key = 0; key < N_KEYS; key++)
        snprintf(line.keys[key], KEY_SIZE, "%s", csv_field(csv, columns->keys[key]));
    enum status status = csv_number(csv, columns->context, "context_tokens", &point.context, error);
    for (int i = 0; i < 2; i++) {
        double *const numbers[3] = {&point.value[i], &point.min[i], &point.max[i]};
        for (int j = 0; j < 3 && status == STATUS_OK; j++)
            status = csv_number(csv, columns->values[i][j], value_names[i][j], numbers[j], error);
        if (point.min[i] <= 0 || point.max[i] < point.min[i])
            point.min[i] = point.max[i] = point.value[i];
    }
    if (status != STATUS_OK || (point.value[0] == 0 && point.value[1] == 0))
        return status;
    status = find_line(plot, &line, &point.line, error);
    if (status == STATUS_OK && plot->n_points == MAX_POINTS)
        status = error_set(error, STATUS_UNSUPPORTED, "%s: found more than %d points to draw",
                           csv->path, MAX_POINTS);
    if (status == STATUS_OK)
        plot->points[plot->n_points++] = point;
    return status;
}

static enum status read_columns(struct csv *csv, struct columns *columns, struct error *error)
{
    enum status status = csv_next(csv, error);
    if (status != STATUS_OK)
        return status;
    columns->context = csv_column(csv, "context_tokens");
    for (int key = 0; key < N_KEYS; key++)
        columns->keys[key] = csv_column(csv, key_names[key]);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3; j++)
            columns->values[i][j] = csv_column(csv, value_names[i][j]);
    if (columns->context < 0 || (columns->values[0][0] < 0 && columns->values[1][0] < 0))
        return error_set(error, STATUS_INVALID,
                         "%s: line 1: found no column context_tokens or no speeds, wanted a file "
                         "that calla bench --csv wrote",
                         csv->path);
    return STATUS_OK;
}

static enum status read_csv(struct plot *plot, const char *path, struct error *error)
{
    struct file_map map;
    enum status status = file_map_open(path, &map, error);
    if (status != STATUS_OK)
        return status;
    const char *data = map.data ? (const char *)map.data : "";
    struct csv csv = {.path = path, .data = data, .end = data + map.size, .line = 1};
    if (map.size >= 3 && memcmp(data, "\xef\xbb\xbf", 3) == 0)
        csv.data += 3; /* the byte order mark that spreadsheets write */
    struct columns columns;
    status = read_columns(&csv, &columns, error);
    while (status == STATUS_OK && csv.data < csv.end) {
        status = csv_next(&csv, error);
        if (status == STATUS_OK && csv.n > 0)
            status = read_point(plot, &csv, &columns, error);
    }
    bytes_clear(&csv.text);
    file_map_close(&map);
    return status;
}

/* ---- text ------------------------------------------------------------------------------------ */

static void put_character(struct bytes *out, char c)
{
    switch (c) {
    case '&':
        bytes_append_text(out, "&amp;");
        break;
    case '<':
        bytes_append_text(out, "&lt;");
        break;
    case '>':
        bytes_append_text(out, "&gt;");
        break;
    default:
        bytes_append_byte(out, (unsigned char)c < ' ' ? '?' : c);
    }
}

/* As XML text: what XML cannot hold becomes '?'. */
static void put_text(struct bytes *out, const char *text)
{
    size_t left = strlen(text);
    while (left > 0) {
        size_t valid = utf8_valid_length(text, left);
        for (size_t i = 0; i < valid; i++)
            if (strncmp(text + i, "\xef\xbf\xbe", 3) == 0 ||
                strncmp(text + i, "\xef\xbf\xbf", 3) == 0) {
                bytes_append_byte(out, '?'); /* U+FFFE, U+FFFF */
                i += 2;
            } else {
                put_character(out, text[i]);
            }
        text += valid;
        left -= valid;
        if (left > 0) {
            bytes_append_byte(out, '?');
            text++;
            left--;
        }
    }
}

static bool keys_differ(const struct plot *plot, int key)
{
    for (int i = 1; i < plot->n_lines; i++)
        if (strcmp(plot->lines[i].keys[key], plot->lines[0].keys[key]) != 0)
            return true;
    return false;
}

/* The keys of a line that differ between lines, or those that do not. */
static void put_keys(struct plot *plot, const struct line *line, bool different)
{
    const char *separator = "";
    for (int key = 0; key < N_KEYS; key++) {
        const char *text = line->keys[key];
        bool shown = keys_differ(plot, key) == different || (different && key == KEY_ENGINE);
        if (!shown || !*text || (!different && key == KEY_ENGINE && plot->n_lines > 1) ||
            (!different && key == KEY_ROWS && strcmp(text, "1") == 0))
            continue;
        bytes_append_text(&plot->out, key == KEY_VERSION && *separator ? " " : separator);
        put_text(&plot->out, text);
        if (key == KEY_THREADS || key == KEY_ROWS)
            bytes_format(&plot->out, " %s%s", key == KEY_ROWS ? "row" : "thread",
                         strcmp(text, "1") == 0 ? "" : "s");
        separator = ", ";
    }
}

/* ---- drawing --------------------------------------------------------------------------------- */

#define PANEL_WIDTH 400
#define PANEL_HEIGHT 300
#define LEFT 64 /* of a panel: room for the numbers */
#define TOP 72
#define WIDTH (2 * (LEFT + PANEL_WIDTH) + 40)

struct panel {
    int kind; /* 0 prefill, 1 decode */
    double left;
    double x_low, x_high; /* log2 of the context */
    double y_high, y_step;
};

/* A context of 0 stands one step to the left of the shortest one. */
static double x_of(const struct panel *panel, double context)
{
    double x = context >= 1 ? log2(context) : panel->x_low;
    return panel->left +
           PANEL_WIDTH * (0.04 + 0.92 * (x - panel->x_low) / (panel->x_high - panel->x_low));
}

static double y_of(const struct panel *panel, double value)
{
    return TOP + PANEL_HEIGHT * (1 - value / panel->y_high);
}

/* False: there is nothing to draw. */
static bool scale_panel(const struct plot *plot, struct panel *panel)
{
    double low = INFINITY, high = -INFINITY, most = 0;
    bool zero = false;
    for (int i = 0; i < plot->n_points; i++) {
        const struct point *point = &plot->points[i];
        if (point->value[panel->kind] == 0)
            continue;
        most = fmax(most, fmax(point->max[panel->kind], point->value[panel->kind]));
        zero |= point->context < 1;
        if (point->context >= 1) {
            low = fmin(low, floor(log2(point->context)));
            high = fmax(high, ceil(log2(point->context)));
        }
    }
    if (most == 0)
        return false;
    if (low > high)
        low = high = 0;
    panel->x_low = zero ? low - 1 : low;
    panel->x_high = high > panel->x_low ? high : panel->x_low + 1;
    double rough = most * 1.05 / 5, power = pow(10, floor(log10(rough)));
    double digit = rough / power;
    panel->y_step = power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
    panel->y_high = panel->y_step * ceil(most * 1.02 / panel->y_step);
    return true;
}

static void draw_axes(struct plot *plot, const struct panel *panel)
{
    struct bytes *out = &plot->out;
    double right = panel->left + PANEL_WIDTH, bottom = TOP + PANEL_HEIGHT;
    bytes_format(out, "<text class=\"title\" x=\"%.0f\" y=\"%d\">%s, tokens a second</text>\n",
                 panel->left, TOP - 14, panel->kind ? "Decode" : "Prefill");
    for (int i = 0; i * panel->y_step <= panel->y_high * 1.001; i++) {
        double value = i * panel->y_step, y = y_of(panel, value);
        bytes_format(out,
                     "<path class=\"grid\" d=\"M%.0f %.1fH%.0f\"/>"
                     "<text class=\"y\" x=\"%.0f\" y=\"%.1f\">%.6g</text>\n",
                     panel->left, y, right, panel->left - 8, y + 4, value);
    }
    int steps = (int)(panel->x_high - panel->x_low), every = steps / 11 + 1;
    bool zero = false;
    for (int i = 0; i < plot->n_points; i++)
        zero |= plot->points[i].value[panel->kind] > 0 && plot->points[i].context < 1;
    for (int i = 0; i <= steps; i += every) {
        double context = exp2(panel->x_low + i), x = x_of(panel, context);
        bytes_format(out,
                     "<path class=\"grid\" d=\"M%.1f %dV%.0f\"/><text class=\"x\" x=\"%.1f\" "
                     "y=\"%.0f\">",
                     x, TOP, bottom, x, bottom + 18);
        if (zero && i == 0)
            bytes_append_text(out, "0</text>\n");
        else if (context >= 1024)
            bytes_format(out, "%.6gK</text>\n", context / 1024);
        else
            bytes_format(out, "%.6g</text>\n", context);
    }
    bytes_format(out,
                 "<path class=\"axis\" d=\"M%.0f %dV%.0fH%.0f\"/><text class=\"x\" x=\"%.0f\" "
                 "y=\"%.0f\">tokens in the context</text>\n",
                 panel->left, TOP, bottom, right, panel->left + PANEL_WIDTH / 2.0, bottom + 38);
}

static void draw_mark(struct bytes *out, int line, double x, double y)
{
    switch (line % 4) {
    case 0:
        bytes_format(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>", x, y);
        break;
    case 1:
        bytes_format(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"7\" height=\"7\"/>", x - 3.5,
                     y - 3.5);
        break;
    case 2:
        bytes_format(out, "<path d=\"M%.1f %.1fl5 8h-10z\"/>", x, y - 5);
        break;
    default:
        bytes_format(out, "<path d=\"M%.1f %.1fl5 5-5 5-5-5z\"/>", x, y - 5);
        break;
    }
}

static int compare_points(const void *a, const void *b)
{
    const struct point *x = a, *y = b;
    if (x->line != y->line)
        return x->line - y->line;
    return (x->context > y->context) - (x->context < y->context);
}

/* The points are sorted by line and context. */
static void draw_line(struct plot *plot, const struct panel *panel, int line)
{
    struct bytes *out = &plot->out;
    int n = 0;
    for (int pass = 0; pass < 2; pass++) { /* the line below, the marks above */
        if (pass == 1 && n > 0)
            bytes_append_text(out, "\"/>");
        for (int i = 0; i < plot->n_points; i++) {
            const struct point *point = &plot->points[i];
            if (point->line != line || point->value[panel->kind] == 0)
                continue;
            double x = x_of(panel, point->context), y = y_of(panel, point->value[panel->kind]);
            if (pass == 0) {
                if (n++ == 0)
                    bytes_format(out, "<g class=\"line%d\"><path class=\"curve\" d=\"", line);
                bytes_format(out, "%c%.1f %.1f", n == 1 ? 'M' : 'L', x, y);
                continue;
            }
            bytes_format(out, "<path class=\"range\" d=\"M%.1f %.1fV%.1f\"/>", x,
                         y_of(panel, point->min[panel->kind]),
                         y_of(panel, point->max[panel->kind]));
            draw_mark(out, line, x, y);
        }
    }
    if (n > 0)
        bytes_append_text(out, "</g>\n");
}

/* Colours that differ for colour-blind eyes, too, on white and on near black. */
static const char style[] =
    "<style>\n"
    "text{font:13px system-ui,sans-serif;fill:#222}.title{font-weight:600;font-size:15px}\n"
    ".x{text-anchor:middle}.y{text-anchor:end}.back{fill:#fff}.grid{stroke:#ddd;fill:none}\n"
    ".axis{stroke:#666;fill:none}.curve{fill:none;stroke-width:2}.range{stroke-width:1.5}\n"
    ".line0{fill:#0072b2;stroke:#0072b2}.line1{fill:#d55e00;stroke:#d55e00}\n"
    ".line2{fill:#009e73;stroke:#009e73}.line3{fill:#cc79a7;stroke:#cc79a7}\n"
    ".line4{fill:#b8860b;stroke:#b8860b}.line5{fill:#56b4e9;stroke:#56b4e9}\n"
    ".line6{fill:#8c6bb1;stroke:#8c6bb1}.line7{fill:#7f7f7f;stroke:#7f7f7f}\n"
    "@media (prefers-color-scheme:dark){text{fill:#ddd}.back{fill:#161616}\n"
    ".grid{stroke:#3a3a3a}.axis{stroke:#999}.line0{fill:#3fa7e0;stroke:#3fa7e0}}\n"
    "</style>\n";

static void draw(struct plot *plot)
{
    struct bytes *out = &plot->out;
    int legend = TOP + PANEL_HEIGHT + 68, height = legend + 20 * plot->n_lines;
    bytes_format(out,
                 "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
                 "height=\"%d\">\n%s<rect class=\"back\" width=\"%d\" height=\"%d\"/>\n"
                 "<text x=\"%d\" y=\"28\">",
                 WIDTH, height, WIDTH, height, style, WIDTH, height, LEFT);
    put_keys(plot, &plot->lines[0], false);
    bytes_append_text(out, "</text>\n");
    qsort(plot->points, (size_t)plot->n_points, sizeof *plot->points, compare_points);
    for (int kind = 0; kind < 2; kind++) {
        struct panel panel = {.kind = kind, .left = LEFT + kind * (PANEL_WIDTH + LEFT + 16)};
        if (!scale_panel(plot, &panel))
            continue;
        draw_axes(plot, &panel);
        for (int line = 0; line < plot->n_lines; line++)
            draw_line(plot, &panel, line);
    }
    for (int line = 0; line < plot->n_lines; line++) {
        int y = legend + 20 * line;
        bytes_format(out, "<g class=\"line%d\"><path class=\"curve\" d=\"M%d %dh28\"/>", line, LEFT,
                     y - 4);
        draw_mark(out, line, LEFT + 14, y - 4);
        bytes_format(out, "</g><text x=\"%d\" y=\"%d\">", LEFT + 36, y);
        put_keys(plot, &plot->lines[line], true);
        bytes_append_text(out, "</text>\n");
    }
    bytes_append_text(out, "</svg>\n");
}

enum status plot_csv(const char *svg_path, const char *const *csv_paths, int n, struct error *error)
{
    struct plot *plot = calloc(1, sizeof *plot);
    if (!plot)
        return error_no_memory(error, "the chart");
    enum status status = STATUS_OK;
    for (int i = 0; i < n && status == STATUS_OK; i++)
        status = read_csv(plot, csv_paths[i], error);
    if (status == STATUS_OK && plot->n_points == 0)
        status =
            error_set(error, STATUS_INVALID, "%s: found no measured test to draw", csv_paths[0]);
    if (status == STATUS_OK) {
        draw(plot);
        status = plot->out.failed
                     ? error_no_memory(error, svg_path)
                     : file_write(svg_path, 0, plot->out.data, plot->out.length, error);
    }
    bytes_clear(&plot->out);
    free(plot);
    return status;
}
